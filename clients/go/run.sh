# oapi-codegen generates; vet and build compile what it wrote, too.
cp "$SOURCE"/* .
mkdir -p strongroom
go run github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.8.0 --config oapi-codegen.yaml "$OPENAPI"
go vet ./...
go build -o scenario .
./scenario
