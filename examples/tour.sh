#!/bin/sh
# A tour of Strongroom with curl: two writes, the history, a restore, a deletion that is undone, a purge.
# Stops at the first wrong response.
#
#   STRONGROOM_URL=http://127.0.0.1:8080 STRONGROOM_TOKEN=dotenv_... sh examples/tour.sh
set -eu

URL=${STRONGROOM_URL:-http://127.0.0.1:8080}
: "${STRONGROOM_TOKEN:?set STRONGROOM_TOKEN to a token with all scopes}"
NAME="tour-$(date +%s)-$$"
LEVEL="\"project\":\"$NAME\",\"target\":\"backend\",\"environment\":\"live\""
BODY=$(mktemp)
# curl reads the token from a file, because every process on the machine can see command lines.
AUTH=$(mktemp)
printf 'header = "Authorization: Bearer %s"\n' "$STRONGROOM_TOKEN" >"$AUTH"
trap 'rm -f "$BODY" "$AUTH"' EXIT
trap 'exit 129' HUP; trap 'exit 130' INT; trap 'exit 143' TERM

# show: the last response, without characters that a terminal could obey.
show() { LC_ALL=C tr -cd '\t\n -~' <"$BODY"; }

# call STATUS METHOD PATH [JSON]: sends a request, and stops unless the response has STATUS.
call() {
  got=$(curl -sS -K "$AUTH" -o "$BODY" -w '%{http_code}' -X "$2" "$URL/api/v1/$3" ${4:+-H 'Content-Type: application/json' -d "$4"})
  [ "$got" = "$1" ] || { printf '%s %s: expected %s, got %s\n' "$2" "$3" "$1" "$got" >&2; show >&2; exit 1; }
}

# has TEXT: stops unless the last response contains it.
has() {
  grep -qF -- "$1" "$BODY" || { printf 'expected %s in the answer:\n' "$1" >&2; show >&2; exit 1; }
}

# member NAME: the first string or number of that name in the last response.
member() {
  sed 's/.*"'"$1"'":"\{0,1\}\([^",}]*\).*/\1/' "$BODY"
}

step() { printf '%s\n' "- $*"; }

step 'Which organization is this token for?'
call 200 GET organization
ORG=$(member ulid)

step "Make project $NAME, target backend, environment live"
call 201 POST "$ORG/projects" "{\"name\":\"Tour\",\"slug\":\"$NAME\"}"
call 201 POST "$ORG/$NAME/targets" '{"name":"Backend"}'
call 201 POST "$ORG/$NAME/backend/environments" '{"name":"Live","status":"production"}'

step 'Store a document, then another: every write records a version'
call 200 POST "$ORG/secrets/store" "{$LEVEL,\"plaintext\":\"GREETING=hello\"}"
FIRST=$(member version)
call 200 POST "$ORG/secrets/store" "{$LEVEL,\"plaintext\":\"GREETING=goodbye\"}"

step 'List the versions, newest first'
call 200 POST "$ORG/secrets/versions" "{$LEVEL}"
has '"total":2'

step "Fetch version $FIRST: encrypted content, with the descriptor of its key"
call 200 GET "$ORG/secrets/versions/$FIRST"
has '"managed":"server"'

step "Restore version $FIRST: a new version, history stays"
call 200 POST "$ORG/secrets/versions/$FIRST/restore" '{}'
has "\"restored_from\":\"$FIRST\""
call 200 GET "$ORG/$NAME/backend/live/secrets?decrypt=true"
has '"content":"GREETING=hello"'

step 'Delete the document; its restore snapshot stays'
call 204 POST "$ORG/secrets/delete" "{$LEVEL}"
call 200 GET "$ORG/$NAME/backend/live/secrets"
has '"levels":{}'
call 200 POST "$ORG/secrets/versions" "{$LEVEL,\"per_page\":1}"
has '"action":"delete"'
SNAPSHOT=$(sed 's/.*"type":"secret-versions","id":"\([0-9]*\)".*/\1/' "$BODY")
call 422 DELETE "$ORG/secrets/versions/$SNAPSHOT"
has '"error":"version_protected"'

step "Restore it from the snapshot, version $SNAPSHOT"
call 200 POST "$ORG/secrets/versions/$SNAPSHOT/restore"
call 200 GET "$ORG/$NAME/backend/live/secrets/values"
has '{"GREETING":"hello"}'

step 'Purge the history: only when confirmed'
call 422 POST "$ORG/secrets/versions/purge" "{$LEVEL}"
has '"error":"confirmation_required"'
call 200 POST "$ORG/secrets/versions/purge" "{$LEVEL,\"confirmed\":true}"
has '"purged_count":5'

step 'Delete the project with everything below it'
call 204 DELETE "$ORG/$NAME"
call 404 GET "$ORG/$NAME"

printf 'All as it should be.\n'
