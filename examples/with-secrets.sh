#!/bin/sh
# Runs a command with the secrets of a level in its environment. Without a command, prints lines for a shell to evaluate.
# Needs curl and jq.
#
#   export STRONGROOM_URL=https://strongroom.example STRONGROOM_TOKEN_FILE=/etc/strongroom/token
#   with-secrets nimbus/orbit/backend/live ./server
set -eu
: "${STRONGROOM_URL:?set STRONGROOM_URL}" "${1:?which level? organization/project/target/environment}"
# Variables that a shell evaluates, resets or does not let a script set.
special='BASH[A-Za-z0-9_]*|PS[0-9]|COMP_WORDBREAKS|DIRSTACK|EPOCHREALTIME|EPOCHSECONDS|EUID|FUNCNAME|GROUPS|HISTCMD|LINENO|MAILCHECK|MAILPATH|OPTIND|PIPESTATUS|PPID|PROMPT_COMMAND|RANDOM|SECONDS|SHELLOPTS|SHLVL|SRANDOM|UID|_'

# Runs in a subshell, so its variables do not reach the environment of the command.
exports() {
  token=${STRONGROOM_TOKEN:-$(cat "${STRONGROOM_TOKEN_FILE:?set STRONGROOM_TOKEN_FILE or STRONGROOM_TOKEN}")}
  # curl reads the token from standard input, because every process on the machine can see command lines.
  # curl tries again after 429 and 503, when the Retry-After of the response says. Its output has all responses.
  responses=$(printf 'Authorization: Bearer %s\n' "$token" |
    curl -sS --fail-with-body --retry 5 --retry-max-time 180 -H @- "$STRONGROOM_URL/api/v1/$1/secrets/values") || {
    printf '%s' "$responses" | jq -rs 'last | .message? // empty' >&2
    return 1
  }
  # The shell would run an invalid name as a command, and the values of some of its own variables as well.
  valid='def valid: test("\\A[A-Za-z_][A-Za-z0-9_]*\\z") and (test("\\A(?:\($special))\\z") | not); last'
  printf '%s' "$responses" | jq -rs --arg special "$special" "$valid"' |
    [keys[] | select(valid | not)] | select(. != []) | "Left out, because a shell cannot set them: \(join(", "))"' >&2
  printf '%s' "$responses" | jq -rs --arg special "$special" "$valid"' |
    to_entries[] | select(.key | valid) | "export \(.key)=\(.value | @sh)"'
}

# A refused read ends the script here, before the command.
lines=$(exports "$1")
shift
if [ $# -eq 0 ]; then
  printf '%s\n' "$lines"
  exit
fi
unset STRONGROOM_TOKEN
eval "$lines"
exec "$@"
