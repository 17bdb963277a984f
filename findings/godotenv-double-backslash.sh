#!/usr/bin/env bash
# godotenv 1.5.1 (Go): a file with the value `"\\"` (one escaped backslash in double quotes) is refused as a whole.
#
# Its reader looks at the character before a quote only: the second backslash makes it take the closing quote as an
# escaped one, and the file has no closing quote then. `"a\\b"` is read well. compose-go 2.16.2, a fork of the same
# reader, reads `"\\"` as one backslash.
# Output seen: godotenv {"A":"a\\b"} for the first file, and an error ("unterminated quoted value") for the second one
set -euo pipefail
folder=$(mktemp -d)
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
cd "$folder"
export GOFLAGS=-mod=mod GOPATH="$folder/go" GOCACHE="$folder/cache"
cat > go.mod <<'MOD'
module sample

go 1.24

require github.com/joho/godotenv v1.5.1
MOD
cat > main.go <<'GO'
package main

import (
	"encoding/json"
	"fmt"

	"github.com/joho/godotenv"
)

func main() {
	for _, text := range []string{"A=\"a\\\\b\"\n", "A=\"\\\\\"\n"} {
		values, err := godotenv.Unmarshal(text)
		if err != nil {
			fmt.Println("error:", err)
			continue
		}
		written, _ := json.Marshal(values)
		fmt.Println(string(written))
	}
}
GO
seen=$(go run . 2>/dev/null)
echo "$seen"
[ "$(head -n 1 <<<"$seen")" = '{"A":"a\\b"}' ]
tail -n 1 <<<"$seen" | grep -q '^error: unterminated quoted value'
