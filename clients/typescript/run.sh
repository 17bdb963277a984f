# openapi-typescript generates the types, openapi-fetch asks.
cp "$SOURCE"/* .
npm ci --silent || exit 75
npx openapi-typescript "$OPENAPI" --output schema.ts
npx tsc
node built/scenario.js
