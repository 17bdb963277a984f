#!/usr/bin/env bash
# python-dotenv 1.2.4: a value in single quotes that ends with a backslash makes this name and the next one disappear.
#
# Shells, dotenv (npm) and Ruby's dotenv read `A='C:\dir\'` as the text between the quotes. python-dotenv takes `\'` as
# an escaped quote, so the value goes on to the next quote. What it then finds is no assignment: it logs a warning on
# standard error and returns neither name.
# Output seen: {"A": None, "B": None, "C": "last"}
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --target "$folder/lib" python-dotenv==1.2.4
printf "%s\n" "A='C:\\dir\\'" "B='y'" "C=last" > "$folder/sample.env"
seen=$(PYTHONPATH="$folder/lib" python3 -c '
import sys
from dotenv import dotenv_values
values = dotenv_values(sys.argv[1], interpolate=False)
print({name: values.get(name) for name in "ABC"})' "$folder/sample.env" 2>"$folder/log")
echo "$seen"
grep 'could not parse statement' "$folder/log"
[ "$seen" = "{'A': None, 'B': None, 'C': 'last'}" ]
