// Writes dist/openapi-3.0.json, which the service serves: openapi.yaml converted to OpenAPI 3.0.3, for older code
// generators. The details of errors are any object there, and the errors of OAuth have one schema, because such
// generators support few unions. A request body has one media type, the first, and an operation one successful
// response, the last, because progenitor supports no operation with two. An operation has one security scheme: with
// two, clients of typescript-fetch send the token without `Bearer`. Successful responses with a body are at the
// operations, because swagger-typescript-api follows no reference when it looks for their media types.
import { readFileSync, writeFileSync } from 'node:fs'
import { parse } from 'yaml'

const { info, components: { schemas, responses, securitySchemes, ...components }, paths: items, ...rest } =
  parse(readFileSync('openapi.yaml', 'utf8'))

const NOTE = 'In this edition, the details of errors are any object, a request body has one media type, and an operation ' +
  'has one successful response and one security scheme; the edition in OpenAPI 3.1 has all.'

const ERROR = {
  title: 'Error',
  type: 'object',
  required: ['error', 'message'],
  properties: {
    error: { type: 'string', description: 'the code: the description of the response lists the codes' },
    message: { type: 'string', description: 'for people' },
    details: { type: 'object', additionalProperties: true },
    errors: {
      type: 'object',
      description: 'by member of the request: what is wrong with it',
      additionalProperties: { type: 'array', items: { type: 'string' } }
    }
  }
}

const OAUTH_ERROR = {
  title: 'OAuthError',
  type: 'object',
  required: ['error', 'error_description', 'message'],
  properties: {
    error: { type: 'string' }, error_description: { type: 'string' }, message: { type: 'string' }
  }
}

// Members whose values are data, not schemas.
const DATA = new Set(['example', 'default', 'enum', 'required', 'security', 'x-audit-events'])

const mapValues = (object, change) =>
  Object.fromEntries(Object.entries(object).map(([name, value]) => [name, change(value)]))
const nameIn = ({ $ref }) => /^#\/components\/schemas\/(.+)$/.exec($ref)?.[1]
const isOAuthError = (name = '') => name.startsWith('OAuthError_')

function convert (value) {
  if (Array.isArray(value)) return value.map(convert)
  if (typeof value !== 'object' || value === null) return value
  const name = nameIn(value)
  if (isOAuthError(name)) return { $ref: '#/components/schemas/OAuthError' }
  // OpenAPI 3.0 ignores everything beside a $ref.
  if (name !== undefined && value.description !== undefined) {
    return { allOf: [{ $ref: value.$ref }], description: value.description }
  }
  const { type, anyOf, ...others } = value
  return {
    ...Object.fromEntries(Object.entries(others).map(([key, member]) =>
      // The keys in `properties` are field names, not keywords: a field may be called `type` or `default`.
      [key, DATA.has(key) ? member : key === 'properties' ? mapValues(member, convert) : convert(member)])),
    ...(type !== undefined && typeOf(type)),
    ...namesOf(others.enum),
    ...(Array.isArray(anyOf) && choiceOf(anyOf))
  }
}

// An enum of Kotlin has a property `name` of its own. These are the names that clients in Java have anyway.
const namesOf = (words) => words?.includes?.('name') &&
  { 'x-enum-varnames': words.map((word) => word.toUpperCase().replace(/^-/, 'MINUS_')) }

function typeOf (type) {
  const types = [type].flat()
  return { type: types.find((one) => one !== 'null'), ...(types.includes('null') && { nullable: true }) }
}

function choiceOf (choices) {
  const others = choices.filter(({ type }) => type !== 'null')
  const nullable = others.length < choices.length && { nullable: true }
  // `data.type` differs between the choices, and older generators support `oneOf` better than `anyOf`.
  if (others.length > 1) return { oneOf: others.map(convert), ...nullable }
  // `nullable` requires a `type` in the same schema.
  const [only] = others
  const name = nameIn(only)
  if (name === undefined) return { ...convert(only), ...nullable }
  const { $ref, ...description } = only
  return { ...typeOf(schemas[name].type), allOf: [{ $ref }], ...description, ...nullable }
}

// Each operation has the parameters of its path, as older generators expect.
const paths = mapValues(items, ({ parameters: ofPath = [], ...operations }) =>
  mapValues(operations, ({ parameters = [], ...operation }) => {
    const all = [...ofPath, ...parameters]
    return { ...operation, ...(all.length > 0 && { parameters: all }) }
  }))

function withOneMediaType ({ requestBody, ...operation }) {
  if (requestBody === undefined) return operation
  const [[type, media]] = Object.entries(requestBody.content)
  return { ...operation, requestBody: { ...requestBody, content: { [type]: media } } }
}

/** The successful responses of an operation but the last: the response to a dry run, if the other one has no body. */
const furtherResponses = (operation) =>
  Object.keys(operation.responses).filter(isSuccess).slice(0, -1)

const isSuccess = (status) => /^2/.test(status)
const nameOf = ({ $ref }) => $ref.split('/').at(-1)
const responseOf = (reference) => responses[nameOf(reference)]
const isInPlace = (status, reference) => isSuccess(status) && responseOf(reference).content !== undefined

// The endpoints of OAuth have no `default`, because progenitor supports no operation with two types of errors.
function withOneResponse (operation) {
  const isOAuth = Object.values(operation.responses).some((reference) => nameOf(reference).startsWith('OAuthErr'))
  const removed = [...furtherResponses(operation), ...isOAuth ? ['default'] : []]
  const others = Object.entries(operation.responses).filter(([status]) => !removed.includes(status))
    .map(([status, reference]) => [status, isInPlace(status, reference) ? responseOf(reference) : reference])
  return { ...operation, responses: Object.fromEntries(others) }
}

const SCHEME = 'bearerToken'
const withOneScheme = ({ security, ...operation }) =>
  ({ ...operation, security: security.filter((way) => SCHEME in way) })

const operations = Object.values(paths).flatMap((operations) => Object.values(operations))
// The schemas of a removed media type and of a removed response are unused.
const removedSchemas = new Set(operations.flatMap((operation) => [
  ...Object.values(operation.requestBody?.content ?? {}).slice(1),
  ...furtherResponses(operation).flatMap((status) => Object.values(responseOf(operation.responses[status]).content))
]).map(({ schema }) => nameIn(schema)))
const movedResponses = new Set(operations.flatMap((operation) => Object.entries(operation.responses)
  .filter(([status, reference]) => isInPlace(status, reference)).map(([, reference]) => nameOf(reference))))
const otherResponses = Object.fromEntries(Object.entries(responses).filter(([name]) => !movedResponses.has(name)))
const otherSchemas = Object.fromEntries(
  Object.entries(schemas).filter(([name]) => !/^(?:OAuth)?Error/.test(name) && !removedSchemas.has(name))
)

writeFileSync('dist/openapi-3.0.json', JSON.stringify({
  ...rest,
  openapi: '3.0.3',
  info: {
    title: info.title,
    version: info.version,
    description: `${info.description}\n\n${NOTE}`,
    license: { name: 'MIT' }
  },
  components: {
    ...convert(components),
    securitySchemes: {
      [SCHEME]: { ...securitySchemes[SCHEME], description: 'An API token, or an access token of an application' }
    },
    responses: convert(otherResponses),
    schemas: { ...mapValues(otherSchemas, convert), Error: ERROR, OAuthError: OAUTH_ERROR }
  },
  paths: convert(mapValues(paths, (operations) => mapValues(operations, (operation) =>
    withOneScheme(withOneResponse(withOneMediaType(operation))))))
}))
