# openapi-python-client generates and formats (ruff) a package, which is installed; every module of it is imported, and
# mypy checks the scenario.
[ -x venv/bin/python ] || python3 -m venv venv
PATH="$PWD/venv/bin:$PATH"
pip="pip --quiet --disable-pip-version-check"
$pip install --requirement "$SOURCE/requirements.txt" || exit 75
rm -rf generated
openapi-python-client generate --path "$OPENAPI" --meta setup --output-path generated
$pip install --force-reinstall --no-deps ./generated
cp "$SOURCE/scenario.py" .
python -c 'import importlib, pkgutil, strongroom_client as client
for module in pkgutil.walk_packages(client.__path__, "strongroom_client."): importlib.import_module(module.name)'
mypy --strict scenario.py
python scenario.py
