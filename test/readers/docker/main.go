// Reads a JSON list of env files from standard input. Prints what `docker run --env-file` and
// `kubectl create secret --from-env-file` make of each file, or null.
package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	"github.com/docker/cli/pkg/kvfile"
	"k8s.io/kubectl/pkg/cmd/util"
)

func main() {
	var files []string
	if err := json.NewDecoder(os.Stdin).Decode(&files); err != nil {
		panic(err)
	}
	folder, err := os.MkdirTemp("", "env-files-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(folder)
	path := filepath.Join(folder, "file")
	read := map[string][]map[string]string{"docker": {}, "kubectl": {}}
	for _, file := range files {
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			panic(err)
		}
		lines, err := kvfile.Parse(path, nil)
		values := map[string]string{}
		for _, line := range lines {
			name, value, _ := strings.Cut(line, "=")
			values[name] = value
		}
		read["docker"] = append(read["docker"], unless(err, values))
		values = map[string]string{}
		err = util.AddFromEnvFile(path, func(name, value string) error {
			values[name] = value
			return nil
		})
		read["kubectl"] = append(read["kubectl"], unless(err, values))
	}
	if err := json.NewEncoder(os.Stdout).Encode(read); err != nil {
		panic(err)
	}
}

func unless(err error, values map[string]string) map[string]string {
	if err != nil {
		return nil
	}
	return values
}
