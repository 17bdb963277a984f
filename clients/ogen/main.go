// Package main imports the generated client, so that `go.mod` names what the client needs.
package main

import _ "clients/strongroom"

func main() {}
