#!/usr/bin/env bash
# yaml 2.9.1 (npm): a block scalar with an indentation indicator loses a last line that has only blanks.
#
# The line has more blanks than the indentation, so by YAML 1.2.2 (8.1.1) the blank after the indentation is content.
# PyYAML 6.0.3 and js-yaml 4.3.2 keep the line.
# Output seen: yaml "  a\n", js-yaml "  a\n \n", PyYAML "  a\n \n"
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund --prefix . yaml@2.9.1 js-yaml@4.3.2 >/dev/null
python3 -m venv python >/dev/null
python/bin/pip install --quiet --disable-pip-version-check PyYAML==6.0.3
printf 'A: |2\n    a\n   \n' > text.yaml
cat > read.mjs <<'JS'
import { readFileSync } from 'node:fs'
import yaml from 'yaml'
import { load } from 'js-yaml'
const text = readFileSync('text.yaml', 'utf8')
for (const read of [yaml.parse, load]) console.log(JSON.stringify(read(text).A))
JS
seen=$(node read.mjs; python/bin/python -c 'import json, yaml; print(json.dumps(yaml.safe_load(open("text.yaml"))["A"]))')
echo "$seen"
[ "$seen" = '"  a\n"
"  a\n \n"
"  a\n \n"' ]
