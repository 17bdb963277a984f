#!/usr/bin/env bash
# openapi-generator 7.17.0, java (library native): a property that is a value or a list of values gives no valid Java.
#
# `anyOf` of a named schema and an array of that schema becomes a class that reads each alternative with
# `readValueAs(TYPE.class)`. For the array, TYPE has a parameter: `List<Rule>.class`, which no Java compiler accepts. The
# generator ends without an error or a warning. `oneOf` has the same code, and so has an array of a primitive type.
# Output seen: readValueAs(List<Rule>.class), and javac: <identifier> expected
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
npm install --silent --no-audit --no-fund --prefix "$folder" @openapitools/openapi-generator-cli@2.41.0
cat > "$folder/api.json" <<'JSON'
{
  "openapi": "3.0.3",
  "info": { "title": "Sample", "version": "1" },
  "paths": { "/item": { "get": { "operationId": "getItem", "responses": { "200": {
    "description": "found", "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Item" } } }
  } } } } },
  "components": { "schemas": {
    "Rule": { "type": "object", "properties": { "name": { "type": "string" } } },
    "Item": { "type": "object", "properties": {
      "rules": { "anyOf": [{ "$ref": "#/components/schemas/Rule" }, { "type": "array", "items": { "$ref": "#/components/schemas/Rule" } }] },
      "tags": { "oneOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }] }
    } }
  } }
}
JSON
cd "$folder"
printf '{"generator-cli":{"version":"7.17.0"}}' > openapitools.json
npx --no-install openapi-generator-cli generate -g java --library native -i api.json -o out >log 2>&1 || { tail log; exit 1; }
for class in ItemRules ItemTags; do grep -n 'readValueAs(List<' "out/src/main/java/org/openapitools/client/model/$class.java"; done
javac -d classes out/src/main/java/org/openapitools/client/model/ItemRules.java 2>errors && exit 1
grep -m1 '<identifier> expected' errors
