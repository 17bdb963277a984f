#!/usr/bin/env bash
# PyYAML 6.0.3 and gopkg.in/yaml.v3 3.0.1 (Go): whether a blank line may have a tab depends on the value above the line.
#
# A line with a blank and a tab is empty for YAML 1.2.2 (6.6, s-l-comments), wherever it stands between two pairs.
# yaml.v3 and the C loader of PyYAML (libyaml) accept the line below a value without quotes, and refuse the document if
# the value above has quotes; the Python loader refuses both. So a tool that quotes a value, and changes nothing else,
# makes the document unreadable for them. yaml 2.9.1 (npm) reads both.
# Output seen (C loader, Python loader, Go, npm): read refused read read; refused refused refused read
set -euo pipefail
folder=$(mktemp -d)
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
cd "$folder"
printf 'A: a\n \t\nB: b\n' > plain.yaml
printf "A: 'a'\n \t\nB: b\n" > quoted.yaml
python3 -m venv python >/dev/null
python/bin/pip install --quiet --disable-pip-version-check PyYAML==6.0.3
npm install --silent --no-audit --no-fund --prefix . yaml@2.9.1 >/dev/null
export GOFLAGS=-mod=mod GOPATH="$folder/go" GOCACHE="$folder/cache"
printf 'module sample\n\ngo 1.24\n\nrequire gopkg.in/yaml.v3 v3.0.1\n' > go.mod
cat > main.go <<'GO'
package main

import (
	"os"

	"gopkg.in/yaml.v3"
)

func main() {
	text, _ := os.ReadFile(os.Args[1])
	var values map[string]string
	if yaml.Unmarshal(text, &values) != nil || values["B"] != "b" {
		os.Exit(1)
	}
}
GO
cat > read.mjs <<'JS'
import { readFileSync } from 'node:fs'
import yaml from 'yaml'
if (yaml.parse(readFileSync(process.argv[2], 'utf8')).B !== 'b') process.exit(1)
JS
go build -o reader . 2>/dev/null
told() { if "$@" >/dev/null 2>&1; then echo read; else echo refused; fi; }
python='import sys, yaml; assert yaml.load(open(sys.argv[1]), getattr(yaml, sys.argv[2]))["B"] == "b"'
seen=$(for file in plain.yaml quoted.yaml; do
  echo "$file: $(told python/bin/python -c "$python" "$file" CSafeLoader)" \
    "$(told python/bin/python -c "$python" "$file" SafeLoader) $(told ./reader "$file") $(told node read.mjs "$file")"
done)
echo "$seen"
[ "$seen" = 'plain.yaml: read refused read read
quoted.yaml: refused refused refused read' ]
