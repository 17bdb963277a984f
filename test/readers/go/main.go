// Reads a JSON list of .env documents from standard input. Prints what each reader makes of each document, or null.
package main

import (
	"encoding/json"
	"os"
	"strings"

	compose "github.com/compose-spec/compose-go/v2/dotenv"
	"github.com/joho/godotenv"
)

func main() {
	var documents []string
	if err := json.NewDecoder(os.Stdin).Decode(&documents); err != nil {
		panic(err)
	}
	read := map[string][]map[string]string{}
	for _, document := range documents {
		values, err := godotenv.Unmarshal(document)
		read["godotenv"] = append(read["godotenv"], unless(err, values))
		values, err = compose.ParseWithLookup(strings.NewReader(document), func(string) (string, bool) { return "", false })
		read["compose"] = append(read["compose"], unless(err, values))
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
