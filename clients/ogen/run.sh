# ogen generates; build compiles the generated package.
cp "$SOURCE"/go.* "$SOURCE"/main.go "$SOURCE"/ogen.yml .
rm -rf strongroom
GOBIN="$PWD/bin" go install github.com/ogen-go/ogen/cmd/ogen@v1.24.0 && go mod download || exit 75
bin/ogen --config ogen.yml --target strongroom --package strongroom --loglevel error "$OPENAPI"
go build ./...
echo compiled
