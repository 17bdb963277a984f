#!/usr/bin/env bash
# yaml 2.9.1 and js-yaml 4.3.2 (npm): a blank line below a line that ends with a backslash, in double quotes.
#
# YAML 1.2.2 (7.3.1, s-double-escaped) makes each blank line there a line feed, and PyYAML 6.0.3 reads it so. `yaml`
# reads a blank instead, and `js-yaml` reads nothing. Without the blank line, all three read the same.
# Output seen: yaml "a b" / "ab", js-yaml "ab" / "ab", PyYAML "a\nb" / "ab"
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund --prefix . yaml@2.9.1 js-yaml@4.3.2 >/dev/null
python3 -m venv python >/dev/null
python/bin/pip install --quiet --disable-pip-version-check PyYAML==6.0.3
printf 'A: "a\\\n\n  b"\n' > blank.yaml
printf 'A: "a\\\n  b"\n' > plain.yaml
cat > read.mjs <<'JS'
import { readFileSync } from 'node:fs'
import yaml from 'yaml'
import { load } from 'js-yaml'
const texts = ['blank.yaml', 'plain.yaml'].map((file) => readFileSync(file, 'utf8'))
for (const read of [yaml.parse, load]) console.log(texts.map((text) => JSON.stringify(read(text).A)).join(' / '))
JS
cat > read.py <<'PY'
import json, yaml
print(' / '.join(json.dumps(yaml.safe_load(open(file))['A']) for file in ['blank.yaml', 'plain.yaml']))
PY
seen=$(node read.mjs; python/bin/python read.py)
echo "$seen"
[ "$seen" = '"a b" / "ab"
"ab" / "ab"
"a\nb" / "ab"' ]
