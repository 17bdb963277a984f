// Generates the types of the console's requests from openapi.yaml, unless they are newer than it.
import { existsSync, mkdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import openapiTS, { astToString } from 'openapi-typescript'

const SOURCE = 'openapi.yaml'
const OUT = 'dist/openapi-types.d.ts'

if (!existsSync(OUT) || statSync(OUT).mtimeMs < statSync(SOURCE).mtimeMs) {
  mkdirSync('dist', { recursive: true })
  writeFileSync(OUT, astToString(await openapiTS(readFileSync(SOURCE, 'utf8'))))
}
