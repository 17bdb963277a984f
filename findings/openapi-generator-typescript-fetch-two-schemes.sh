#!/usr/bin/env bash
# openapi-generator 7.17.0, typescript-fetch: with two alternative security schemes, the second one overwrites the header.
#
# An operation accepts an HTTP bearer token or OAuth 2.0 (`security` with two entries, of which a client needs one). The
# generated method writes the header `Authorization` for both, in the order of the names of the schemes: here first
# `Bearer` and the token, then the access token of OAuth as it is, without `Bearer` (RFC 6750, 2.1), which is sent. If the
# bearer scheme has a name after `oauth`, the header is right.
# Output seen: two assignments of headerParameters["Authorization"]: `Bearer ${tokenString}`, then accessToken(…) alone
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
npm install --silent --no-audit --no-fund --prefix "$folder" @openapitools/openapi-generator-cli@2.41.0
cat > "$folder/api.json" <<'JSON'
{
  "openapi": "3.0.3",
  "info": { "title": "Sample", "version": "1" },
  "paths": { "/item": { "get": {
    "operationId": "getItem",
    "security": [{ "bearer": [] }, { "oauth": ["read"] }],
    "responses": { "204": { "description": "done" } }
  } } },
  "components": { "securitySchemes": {
    "bearer": { "type": "http", "scheme": "bearer" },
    "oauth": { "type": "oauth2", "flows": { "authorizationCode": {
      "authorizationUrl": "https://example.com/authorize", "tokenUrl": "https://example.com/token", "scopes": { "read": "read" } } } }
  } }
}
JSON
cd "$folder"
printf '{"generator-cli":{"version":"7.17.0"}}' > openapitools.json
npx --no-install openapi-generator-cli generate -g typescript-fetch -i api.json -o out >/dev/null 2>log || { tail log; exit 1; }
grep -n 'Authorization' out/apis/DefaultApi.ts
[ "$(grep -c 'headerParameters\["Authorization"\] =' out/apis/DefaultApi.ts)" = 2 ]
grep 'headerParameters\["Authorization"\] =' out/apis/DefaultApi.ts | tail -n 1 | grep -qv 'Bearer'
