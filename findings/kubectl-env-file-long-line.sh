#!/usr/bin/env bash
# kubectl 0.34.2 (k8s.io/kubectl): a line of 64 KiB in a file of `--from-env-file` ends the file without an error.
#
# Go's bufio.Scanner stops at a line that does not fit into its buffer of 64 KiB. kubectl's reader does not ask the
# scanner for an error, so the long line and every line below are missing from the Secret or ConfigMap, with exit code 0.
# docker/cli 29.9.3 (pkg/kvfile), which reads the same kind of file with the same scanner, reports the line.
# Output seen: kubectl [FIRST], no error; docker: an error ("token too long")
set -euo pipefail
folder=$(mktemp -d)
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
cd "$folder"
export GOFLAGS=-mod=mod
cat > go.mod <<'MOD'
module sample

go 1.24.0

require (
	github.com/docker/cli v29.9.3+incompatible
	k8s.io/kubectl v0.34.2
)
MOD
cat > main.go <<'GO'
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/docker/cli/pkg/kvfile"
	"k8s.io/kubectl/pkg/cmd/util"
)

func main() {
	text := "FIRST=1\nLONG=" + strings.Repeat("x", 64*1024) + "\nLAST=2\n"
	if err := os.WriteFile("sample.env", []byte(text), 0o600); err != nil {
		panic(err)
	}
	var names []string
	err := util.AddFromEnvFile("sample.env", func(name, _ string) error {
		names = append(names, name)
		return nil
	})
	fmt.Println("kubectl", names, err)
	_, err = kvfile.Parse("sample.env", nil)
	fmt.Println("docker", err)
}
GO
seen=$(go run .)
echo "$seen"
[ "$(head -n 1 <<<"$seen")" = 'kubectl [FIRST] <nil>' ]
tail -n 1 <<<"$seen" | grep -q 'token too long'
