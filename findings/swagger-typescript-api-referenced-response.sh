#!/usr/bin/env bash
# swagger-typescript-api 13.13.0 (npm): a response that is a reference has a type, but its body is not parsed.
#
# Two operations have the same JSON response: one declares it in place, the other refers to `components/responses`. The
# method of the first has `format: "json"`, which makes the client parse the body. The method of the second has the same
# result type and no `format`, so `data` is null at run time although the type says otherwise.
# Output seen: both methods call `request<Item, any>`; the first with `format: "json"`, the second without `format`
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
npm install --silent --no-audit --no-fund --prefix "$folder" swagger-typescript-api@13.13.0
cat > "$folder/api.json" <<'JSON'
{
  "openapi": "3.0.3",
  "info": { "title": "Sample", "version": "1" },
  "paths": {
    "/first": { "get": { "operationId": "first", "responses": { "200": {
      "description": "done", "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Item" } } } } } } },
    "/second": { "get": { "operationId": "second", "responses": { "200": { "$ref": "#/components/responses/Item" } } } }
  },
  "components": {
    "schemas": { "Item": { "type": "object", "properties": { "name": { "type": "string" } } } },
    "responses": { "Item": {
      "description": "done", "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Item" } } } } }
  }
}
JSON
(cd "$folder" && npx --no-install swagger-typescript-api generate -p api.json -o out -n Api.ts >/dev/null)
method () { awk -v from="    $1: (" 'index($0, from) == 1 { on = 1 } on { print } on && /}\),/ { exit }' "$folder/out/Api.ts"; }
for name in first second; do method "$name"; done
method first | grep -q 'request<Item, any>'
method first | grep -q 'format: "json"'
method second | grep -q 'request<Item, any>'
if method second | grep -q 'format:'; then exit 1; fi
