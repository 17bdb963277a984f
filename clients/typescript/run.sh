# openapi-typescript generates the types, openapi-fetch asks.
cp "$SOURCE"/* .
npm ci --silent
npx openapi-typescript "$OPENAPI" --output schema.ts
npx tsc
node built/scenario.js
