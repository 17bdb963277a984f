// Generates what the console needs of openapi.yaml, unless the output is newer than the document: the types of its
// requests, and the method and path of each operation.
import { existsSync, mkdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import openapiTS, { astToString } from 'openapi-typescript'
import { parse } from 'yaml'

const SOURCE = 'openapi.yaml'
const TYPES = 'dist/openapi-types.d.ts'
const OPERATIONS = 'dist/openapi-operations.json'

const isFresh = (file) => existsSync(file) && statSync(file).mtimeMs >= statSync(SOURCE).mtimeMs
if (![TYPES, OPERATIONS].every(isFresh)) {
  mkdirSync('dist', { recursive: true })
  const text = readFileSync(SOURCE, 'utf8')
  const operations = Object.entries(parse(text).paths).flatMap(([path, { parameters: _parameters, ...methods }]) =>
    Object.entries(methods).map(([method, { operationId }]) => [operationId, `${method.toUpperCase()} ${path}`]))
  writeFileSync(OPERATIONS, JSON.stringify(Object.fromEntries(operations)))
  writeFileSync(TYPES, astToString(await openapiTS(text)))
}
