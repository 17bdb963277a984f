#!/usr/bin/env bash
# gopkg.in/yaml.v3 3.0.1 (Go): in `{A:, B: 1}` the name is `A:`, and in `{A: , B: 1}` it is `A`.
#
# In a flow mapping, a comma cannot follow the colon within a plain name (YAML 1.2.2, 7.3.3), so both are the name `A`
# without a value. PyYAML 6.0.3, js-yaml 4.3.2 and yaml 2.9.1 (npm) read both alike.
# Output seen: map[A::<nil> B:1] for the first, map[A:<nil> B:1] for the second
set -euo pipefail
folder=$(mktemp -d)
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
cd "$folder"
export GOFLAGS=-mod=mod GOPATH="$folder/go" GOCACHE="$folder/cache"
cat > go.mod <<'MOD'
module sample

go 1.24

require gopkg.in/yaml.v3 v3.0.1
MOD
cat > main.go <<'GO'
package main

import (
	"fmt"

	"gopkg.in/yaml.v3"
)

func main() {
	for _, text := range []string{"{A:, B: 1}", "{A: , B: 1}"} {
		var values map[string]any
		if err := yaml.Unmarshal([]byte(text), &values); err != nil {
			panic(err)
		}
		fmt.Println(values)
	}
}
GO
seen=$(go run . 2>/dev/null)
echo "$seen"
[ "$seen" = 'map[A::<nil> B:1]
map[A:<nil> B:1]' ]
