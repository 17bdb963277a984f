#!/usr/bin/env bash
# dotenv 17.4.2 (npm): a name without a value takes a quoted text on the next line as its value.
#
# `API_KEY=` and below it a line `"note"` gives API_KEY the value `note`. python-dotenv 1.2.4 reads an empty value, and
# reports the second line as one that it cannot parse. dotenv's pattern allows any white space after the separator,
# line feeds included. Without quotes the next line is taken too, but only after a colon (`API_KEY:`).
# Output seen: dotenv {"API_KEY":"note","COLON":"text"}, python-dotenv {"API_KEY": ""}
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
npm install --silent --no-audit --no-fund --prefix "$folder" dotenv@17.4.2
python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --target "$folder/lib" python-dotenv==1.2.4
printf '%s\n' 'API_KEY=' '"note"' 'COLON:' '  text' > "$folder/sample.env"
first=$(cd "$folder" && node -e '
const { parse } = require("dotenv")
console.log(JSON.stringify(parse(require("fs").readFileSync("sample.env"))))')
second=$(PYTHONPATH="$folder/lib" python3 -c '
import json, sys
from dotenv import dotenv_values
print(json.dumps({n: v for n, v in dotenv_values(sys.argv[1]).items() if v is not None}))' "$folder/sample.env" 2>/dev/null)
echo "dotenv $first"
echo "python-dotenv $second"
[ "$first" = '{"API_KEY":"note","COLON":"text"}' ]
[ "$second" = '{"API_KEY": ""}' ]
