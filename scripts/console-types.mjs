// Generates what the console needs of openapi.yaml, unless the output is newer than the document: the types of its
// requests, the method and path of each operation, the abilities of tokens, and the names of events.
import { existsSync, mkdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import openapiTS, { astToString } from 'openapi-typescript'
import { parse } from 'yaml'

const SOURCE = 'openapi.yaml'
const TYPES = 'dist/openapi-types.d.ts'
const OPERATIONS = 'dist/openapi-operations.json'
const ABILITIES = 'dist/openapi-abilities.json'
const EVENTS = 'dist/openapi-events.json'

const isFresh = (file) => existsSync(file) && statSync(file).mtimeMs >= statSync(SOURCE).mtimeMs
if (![TYPES, OPERATIONS, ABILITIES, EVENTS].every(isFresh)) {
  mkdirSync('dist', { recursive: true })
  const text = readFileSync(SOURCE, 'utf8')
  const { paths, components } = parse(text)
  const operations = Object.entries(paths).flatMap(([path, { parameters: _parameters, ...methods }]) =>
    Object.entries(methods).map(([method, { operationId }]) => [operationId, `${method.toUpperCase()} ${path}`]))
  writeFileSync(OPERATIONS, JSON.stringify(Object.fromEntries(operations)))
  writeFileSync(ABILITIES, JSON.stringify(components.schemas.Ability.enum))
  writeFileSync(EVENTS, JSON.stringify(components.schemas.EventName.enum))
  writeFileSync(TYPES, astToString(await openapiTS(text)))
}
