import {
  OptionalKind, Type, type ObjectOptions, type SchemaOptions, type Static, type StringOptions, type TBoolean,
  type TLiteral, type TObject, type TProperties, type TSchema, type TString, type TUnion
} from '@sinclair/typebox'
import { UNPRINTABLE } from './unprintable.ts'

type Literals<T extends readonly string[]> = { -readonly [K in keyof T]: T[K] extends string ? TLiteral<T[K]> : never }

/** A string enumeration. */
export function OneOf<const T extends readonly string[]> (values: T, options: SchemaOptions = {}) {
  return Type.Union(values.map((value) => Type.Literal(value)), options) as unknown as TUnion<Literals<T>>
}

/**
 * Requests are validated with `schema`; the OpenAPI document shows `published`, without the spellings that the API
 * accepts only for older clients.
 */
export function PublishedAs<T extends TSchema> (schema: T, published: TSchema): T {
  return { ...schema, 'x-published': published }
}

/** Overrides the description or the default of a named schema for one field. */
export function Described<T extends TSchema> (
  schema: T, { description, ...rest }: { description?: string, default?: string }
): T {
  return { ...schema, ...rest, ...(description !== undefined && { 'x-here': description }) }
}

/** A union of named object schemas; the property `member` is the discriminator. */
export function ToldApart<T extends TObject> (member: string, choices: readonly T[], options: SchemaOptions) {
  const wordsOf = (schema: TSchema) =>
    (schema.anyOf as TSchema[] | undefined ?? [schema]).map((one) => one.const as string)
  const mapping = Object.fromEntries(choices.flatMap(({ title, properties }) =>
    wordsOf(properties[member]!).map((word) => [word, `#/components/schemas/${title!}`])))
  return Type.Unsafe<Static<T>>({ ...options, oneOf: choices, discriminator: { propertyName: member, mapping } })
}

/** The value or null, for responses only: `type: [T, "null"]` serializes faster than `anyOf`. */
export function Nullable<T extends TSchema> (schema: T) {
  return Type.Unsafe<Static<T> | null>({ ...schema, type: [schema.type, 'null'] })
}

/** A list of secret names in a response. */
export const NameList = (description: string) => Type.Array(Type.String(), { description })

const EXAMPLE = Symbol('example')

/** A field of a response, with its value in the example of the response. */
export function Example<T extends TSchema> (schema: T, value: unknown): T {
  return { ...schema, [EXAMPLE]: value }
}

/** Builds the example of an object from the examples of its fields. Omits optional fields without `Example`. */
export function exampleOf (properties: TProperties): object {
  return Object.fromEntries(Object.entries(properties)
    .filter(([, field]) => EXAMPLE in field || !(OptionalKind in field))
    .map(([name, field]) => [name, valueOf(field)]))
}

function valueOf (schema: TSchema & { [EXAMPLE]?: unknown }): unknown {
  if (EXAMPLE in schema) return schema[EXAMPLE]
  const [value = schema.const] = schema.examples ?? []
  if (value !== undefined) return value
  if (schema.type === 'array') return [valueOf(schema.items)]
  if (schema.type === 'object') return exampleOf(schema.properties)
  throw new Error(`this field needs an example: ${JSON.stringify(schema)}`)
}

/** A response body, with an example that is built from the examples of the fields. */
export function Answer<T extends TProperties> (title: string, properties: T) {
  return Type.Object(properties, { title, examples: [exampleOf(properties)] })
}

/** A request body. Rejects unknown fields, so that a misspelt `no_backup` is not ignored. */
export function Body<T extends TProperties> (
  properties: T, options: ObjectOptions & { title: string, examples: unknown[] }
) {
  return Type.Object(properties, { additionalProperties: false, ...options })
}

const RULE = Symbol('rule')

/**
 * A string with a pattern. The error for other strings is `must be ${rule}`; a rule ends with an example (`such as …`).
 */
export function Patterned (pattern: string, rule: string, options: StringOptions = {}): TString {
  return Object.assign(Type.String({ pattern, ...options }), { [RULE]: rule })
}

/** The rule of a schema that was made with `Patterned` or `Flag`. */
export const ruleOf = (schema: TSchema): string | undefined => (schema as { [RULE]?: string })[RULE]

/** A time: a `Date` in the code, RFC 3339 in UTC in responses. */
export const Timestamp = Type.Unsafe<Date>(Type.String({ format: 'date-time', examples: ['2026-03-01T12:00:00.000Z'] }))

/** A day in UTC. */
export const Day = Type.String({ format: 'date', examples: ['2026-03-01'] })

/** Maximum length of a timestamp in a request or on a command line. */
export const TIMESTAMP_LENGTH = 64

/** A time in a request, with any UTC offset. `src/rules/formats/timestamps.ts` implements the format `date-time`. */
export const Moment = (options: SchemaOptions = {}) =>
  Type.String({ format: 'date-time', maxLength: TIMESTAMP_LENGTH, ...options })

/** ULIDs in responses: Crockford base32, 26 characters, upper case. */
export const ULID_PATTERN = '^[0-7][0-9A-HJKMNP-TV-Z]{25}$'
const ULID = '01JQZ6V9T4M8N2K7R5W3X1Y0BC'
export const Ulid = Patterned(ULID_PATTERN, `an id, such as ${ULID}`, { title: 'Ulid', examples: [ULID] })

export const SLUG_PATTERN = '^[a-z0-9]+(-[a-z0-9]+)*$'
export const SLUG_LENGTH = 64
const SLUG_RULE = `lower-case letters and digits, with single hyphens between them, at most ${SLUG_LENGTH}`
export const Slug = Patterned(SLUG_PATTERN, `${SLUG_RULE}, such as my-project`, {
  title: 'Slug',
  minLength: 1,
  maxLength: SLUG_LENGTH,
  description: 'the name in paths: lower-case letters and digits, with single hyphens between them'
})
/** The slug of a new resource. */
export const NewSlug = Described(Slug, { description: 'the name in paths; default: derived from `name`' })

// A slug in a path, without a pattern: an invalid slug causes 404, not 422.
const slugInPath = (example: string) => Type.String({ maxLength: 128, examples: [example] })
export const ProjectInPath = slugInPath('orbit')
export const TargetInPath = slugInPath('backend')
export const EnvironmentInPath = slugInPath('live')

export const NAME_LENGTH = 255
const NAMES = { minLength: 1, maxLength: NAME_LENGTH, examples: ['Orbit'] }
const NAME_RULE = `a text of 1 to ${NAME_LENGTH} characters that are not all spaces`
/** A name that may be stored. Names from before `NewName` can have any character. */
export const Name = Patterned('\\S', `${NAME_RULE}, such as Orbit`, {
  ...NAMES, description: 'a new name has no control or direction characters'
})

/**
 * A text without control and direction characters, and not of blanks alone. The validator also matches texts that are
 * far too long. Only blanks are before the first other character, so that there is one way to match.
 */
export const NEW_TEXT_PATTERN = `^[^\\S${UNPRINTABLE}]*[^\\s${UNPRINTABLE}][^${UNPRINTABLE}]*$`

const NEW_NAME_RULE = `${NAME_RULE}, without control and direction characters, such as Orbit`

/**
 * The name of a new organization, project, target, environment, team, token, person or client. The document shows
 * `Name`, whose pattern every generator of clients understands: not all regular expressions have `\u2028`.
 */
export const NewName = PublishedAs(
  Patterned(NEW_TEXT_PATTERN, NEW_NAME_RULE, NAMES),
  { ...Name, description: 'without control and direction characters' }
)
/** The message for a changed name that is not a `NewName`. */
export const NEW_NAME_PROBLEM = `must be ${NEW_NAME_RULE}`

/** A description in a request. `NullableDescription` is a description in a response. */
export const NewDescription = Type.Optional(Type.Union([Type.String({ maxLength: 2000 }), Type.Null()]))
export const NullableDescription = Example(Nullable(Type.String()), null)

/** The fields with which a project, a target or a team is created and changed. */
export const CREATE_NAMED = { name: NewName, slug: Type.Optional(NewSlug), description: NewDescription }
export const UPDATE_NAMED = { name: Type.Optional(Name), slug: Type.Optional(Slug), description: NewDescription }

/** Maximum size of a blob: 1 MiB decoded, and the length of its base64 text. */
export const BLOB_BYTES = 1024 * 1024
export const BLOB_LENGTH = Math.ceil(BLOB_BYTES / 3) * 4

/** Base64 of IV (12 bytes), ciphertext and tag (16 bytes): AES-256-GCM without additional data. */
const BLOB = 'AAECAwQFBgcICQoLGoZMPg1bEXppyGxlIihs+2Dc2Ly9kEgGW5+j/+uzhCPCe6E='
export const Blob = Patterned('^[A-Za-z0-9+/]+={0,2}$', `base64 of 28 bytes to 1 MiB, such as ${BLOB}`, {
  title: 'Blob',
  minLength: 38,
  maxLength: BLOB_LENGTH,
  description:
    'base64 of IV (12 bytes) || ciphertext || tag (16 bytes), AES-256-GCM without additional data; 28 bytes to 1 MiB when decoded',
  examples: [BLOB]
})

/** A proof that the client knows the key string: base64 of 32 bytes (S-8.5). */
export const KeyProof = Type.String({
  minLength: 1,
  maxLength: 128,
  description: 'base64 of the 32-byte key proof',
  examples: ['Ky6v4WQhYV5SeZQBXs6dO4s+JghJb/9GV7I9EHGj7dk=']
})

export const PAGE_SIZE = { default: 25, maximum: 100 } as const
const page = { minimum: 1, maximum: 1_000_000_000 }
const perPage = { minimum: 1, maximum: PAGE_SIZE.maximum, description: 'rows per page' }
export const Page = Type.Integer({ ...page, default: 1, description: 'the first page is 1' })
export const PerPage = Type.Integer({ ...perPage, default: PAGE_SIZE.default })

/** Without `page` and `per_page`, lists return up to this number of rows. */
export const WHOLE_LIST = 1000
export const ListQuery = Type.Object({
  page: Type.Optional(Type.Integer({
    ...page,
    description: `the first page is 1; without \`page\` and \`per_page\`: the first ${WHOLE_LIST} rows`,
    'x-named': 'page_of_list'
  })),
  per_page: Type.Optional(Type.Integer({ ...perPage, 'x-named': 'per_page_of_list' }))
})
export type ListQuery = Static<typeof ListQuery>

/** Orders of a list of resources with names. */
export const SORTS = ['name', 'created_at', '-name', '-created_at'] as const
export type Sort = (typeof SORTS)[number]

/** The order of a list, and the texts that the name (`name`) or one of the searched columns (`search`) must contain. */
export interface Selection { sort?: Sort | undefined, name?: string | undefined, search?: string | undefined }

// NUL characters are rejected here, because no name contains them, and PostgreSQL rejects them, too.
const Contained = (options: SchemaOptions) =>
  Patterned('^[^\\x00]+$', `a text of 1 to ${NAME_LENGTH} characters without NUL, such as web`, {
    minLength: 1, maxLength: NAME_LENGTH, ...options
  })

/** The query of a list of resources with names. Existing clients send these parameters. */
export const NamedListQuery = Type.Object({
  ...ListQuery.properties,
  sort: Type.Optional(OneOf(SORTS, {
    description: 'the order: by name, in upper or lower case, or by creation; with `-` in reverse'
  })),
  'filter[name]': Type.Optional(Contained({
    description: 'only names that contain this text, in upper or lower case', 'x-named': 'filter_name'
  })),
  search: Type.Optional(Contained({
    description: 'only resources whose name or slug (of a member: e-mail address) contains this text, in upper or lower case',
    'x-named': 'search_in_list'
  }))
})
export type NamedListQuery = Static<typeof NamedListQuery>

export const PageMeta = Type.Object({
  current_page: Type.Integer(),
  per_page: Type.Integer(),
  total: Type.Integer(),
  last_page: Type.Integer(),
  from: Nullable(Type.Integer()),
  to: Nullable(Type.Integer())
}, { title: 'PageMeta', examples: [{ current_page: 1, per_page: WHOLE_LIST, total: 1, last_page: 1, from: 1, to: 1 }] })
export type PageMeta = Static<typeof PageMeta>
/** `PageMeta` with the example of a list that is always paged. */
export const PagedMeta = Example(PageMeta, { ...PageMeta.examples[0], per_page: PAGE_SIZE.default })

/** The schemas of a resource `{type, id, attributes}`: the resource, a response with one, and a list. */
export function Resource<T extends TProperties> (
  type: string, { title, id, ...names }: { title: string, id: string, attributesTitle?: string }, properties: T
) {
  const attributes = Type.Object(properties, { title: names.attributesTitle ?? `${title}Attributes` })
  const item = Answer(title, { type: Type.Literal(type), id: Example(Type.String(), id), attributes })
  return {
    attributes,
    item,
    one: Answer(`${title}Answer`, { data: item }),
    list: ListOf(`${title}List`, item)
  }
}

/** A page of resources. */
export const ListOf = <T extends TSchema>(title: string, item: T) =>
  Answer(title, { data: Type.Array(item), meta: PageMeta })

export const NoContent = Type.Null({ description: 'Success, no body' })

/** Headers of a conditional read. */
export const ReadHeaders = Type.Object({
  'if-none-match': Type.Optional(
    Type.String({ description: 'the ETag of an earlier response; 304 if nothing has changed' })
  )
})

const ETAG = '(?:W/)?"[^"]*"'
/** RFC 9110, 13.1: `*` or a list of ETags. Rejects other values, because they protect nothing. */
export const PRECONDITION = `^(?:\\*|${ETAG}(?:[ \\t]*,[ \\t]*${ETAG})*)$`

const PRECONDITION_RULE = '`*` or a list of ETags in double quotes, such as "m1VJp2b0nQYkWq3S8dT5xg"'

/** Headers of a conditional write. */
export const WriteHeaders = Type.Object({
  'if-match': Type.Optional(Patterned(PRECONDITION, PRECONDITION_RULE, {
    description: 'the ETag of the resource (of a document: the `etag` of its level); 412 if it has changed since'
  })),
  'if-none-match': Type.Optional(Patterned(PRECONDITION, PRECONDITION_RULE, {
    description: '`*`: 412 if the resource exists',
    'x-named': 'if-none-match_of_write'
  }))
})

/** The warning in the response to a write. */
export const UnreadableWarning = Type.Optional(Type.String({
  description: "a stored document does not parse in the project's `secret_format`: it cannot be merged with other levels"
}))

/** A flag in a query: `true`, `false`, `1` or `0`, in upper or lower case; other values are rejected. */
export const Flag = (options: SchemaOptions = {}): TBoolean =>
  Object.assign(Type.Boolean({ default: false, ...options }), { [RULE]: 'true, false, 1 or 0' })
