# oapi-codegen generates; vet and build compile what it wrote, too.
cp "$SOURCE"/* .
mkdir -p strongroom
GOBIN="$PWD/bin" go install github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.8.0 && go mod download || exit 75
bin/oapi-codegen --config oapi-codegen.yaml "$OPENAPI"
go vet ./...
go build -o scenario .
./scenario
