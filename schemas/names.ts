import { Type, type Static } from '@sinclair/typebox'
import { SECRET_NAME_LENGTH } from './changes.ts'
import { CREATED_BY, CREATED_THROUGH } from './last-change.ts'
import { LeftOut, LevelName, READ_TYPE } from './secrets.ts'
import { Answer, Example, Flag, NameList, Nullable, OneOf, Patterned, Slug, Timestamp, ULID_PATTERN } from './shapes.ts'
import { VERSION_ACTIONS } from './versions.ts'

/** Media type of values that a POSIX shell can source. */
export const SHELL_TYPE = 'text/plain'
/** Media type of values in YAML (RFC 9512). */
export const YAML_TYPE = 'application/yaml'
/** The media types of values. The first one is the default. */
export const VALUES_TYPES = [READ_TYPE, SHELL_TYPE, YAML_TYPE] as const

export const ValuesQuery = Type.Object({
  format: Type.Optional(OneOf(['docker'], {
    description: 'lines `NAME=value` without quotes, as text/plain, for `docker run --env-file` and `kubectl --from-env-file`',
    'x-named': 'format_of_values'
  }))
})
export type ValuesQuery = Static<typeof ValuesQuery>

const Values = Type.Record(Type.String(), Type.String(), {
  title: 'Values', description: 'names and values, merged over the levels', examples: [{ HELLO: 'world', FOO: 'bar' }]
})

export const ValuesAnswer = {
  content: {
    [READ_TYPE]: { schema: Values },
    [SHELL_TYPE]: {
      schema: Type.String({
        description: '`NAME=\'value\'` lines that a POSIX shell can source, not for storing; or lines of `format=docker`', examples: ["HELLO='world'\nFOO='bar'\n"]
      })
    },
    // The schema describes the parsed YAML, because generated clients parse the response.
    [YAML_TYPE]: { schema: Values }
  }
}

const Prefix = Type.String({
  minLength: 1, maxLength: 255, description: 'only names that begin with this text', examples: ['HE']
})

/** Query parameters that select names. */
export const NAME_FILTERS = {
  prefix: Type.Optional(Prefix),
  search: Type.Optional(Type.String({
    minLength: 1,
    maxLength: 255,
    description: 'only names that contain this text, in upper or lower case',
    examples: ['hello']
  }))
}

export const NamesQuery = Type.Object({
  merge: Type.Optional(Flag({ description: 'also list the names of the levels above', 'x-named': 'merge_of_names' })),
  ...NAME_FILTERS
})
export type NamesQuery = Static<typeof NamesQuery>

const NameAttributes = Type.Object({
  name: Example(Type.String(), 'HELLO'),
  level: Example(LevelName, 'environment'),
  overrides: Example(Type.Array(LevelName, {
    description: 'the levels above whose documents have the name as well, if the caller can read them, from the project down; empty without `merge`'
  }), [])
}, { title: 'SecretNameAttributes' })

const SecretName = Type.Object(
  { type: Type.Literal('secret-names'), attributes: NameAttributes }, { title: 'SecretName' }
)
export type SecretName = Static<typeof SecretName>

export const NamesAnswer = Answer('SecretNameList', {
  data: Type.Array(SecretName, { description: 'sorted by name' }),
  meta: Type.Object({ total: Example(Type.Integer(), 1), left_out: LeftOut }, { title: 'SecretNamesMeta' })
})

/** Maximum number of versions that a request for the history of a name opens. */
export const MAX_OPENED_VERSIONS = 500

export const NameHistoryQuery = Type.Object({
  name: Type.String({
    minLength: 0,
    maxLength: SECRET_NAME_LENGTH,
    description: 'the exact name; may be empty, as in JSON and YAML',
    examples: ['HELLO'],
    'x-named': 'name_of_history'
  }),
  values: Type.Optional(Flag({ description: 'also return the values' })),
  after: Type.Optional(Patterned('^[1-9][0-9]*$', '`meta.next` of the previous response, such as 42', {
    maxLength: 16,
    description: 'only older versions than this one: `meta.next` of the previous response',
    examples: ['42'],
    'x-named': 'after_version'
  }))
})
export type NameHistoryQuery = Static<typeof NameHistoryQuery>

export const NAME_CHANGES = ['added', 'changed', 'removed'] as const
export type NameChangeWord = (typeof NAME_CHANGES)[number]

const NameChange = Type.Object({
  type: Type.Literal('secret-name-changes'),
  id: Example(Type.String({ description: 'the version' }), '1'),
  attributes: Type.Object({
    change: Example(OneOf(NAME_CHANGES), 'added'),
    action: Example(OneOf(VERSION_ACTIONS, { description: 'the action of the version' }), 'create'),
    created_at: Timestamp,
    created_by: CREATED_BY,
    created_through: CREATED_THROUGH,
    value: Type.Optional(Nullable(Type.String({
      description: 'the value after the change; null if the name was removed; absent without `values`'
    }))),
    json: Type.Optional(Nullable(Type.String({
      description: 'the value after the change as JSON, with its type and digits, for `set` of a change with `replace`; null if the name was removed, or if the value has a number that JSON cannot spell, such as 0x1F in YAML; absent without `values`'
    })))
  }, { title: 'NameChangeAttributes' })
}, { title: 'NameChange' })
export type NameChange = Static<typeof NameChange>

export const NameHistoryAnswer = Answer('NameHistory', {
  data: Type.Array(NameChange, { description: 'newest first; may be empty although `meta.next` is not null' }),
  meta: Type.Object({
    unreadable: Example(Type.Integer({
      description: 'opened versions that do not parse, or are under a key of the client; they were skipped'
    }), 0),
    missing: Example(Type.Integer({
      description: 'writes whose version was deleted or never recorded: between the opened versions, after the newest version (without `after`), and before the oldest one (if `next` is null)'
    }), 0),
    next: Example(Nullable(Type.String({ description: '`after` of the next request; null at the end' })), null)
  }, { title: 'NameHistoryMeta' })
})

const namesOfVersion = (description: string, example: readonly string[]) =>
  Example(Nullable(NameList(`${description}, sorted; null if no older version can be read`)), example)

const VersionNames = Type.Object({
  type: Type.Literal('secret-version-names'),
  id: Example(Type.String({ description: 'the version' }), '1'),
  attributes: Type.Object({
    compared_with: Example(Nullable(Type.String({
      description: 'the next older version that can be read; null if the version was compared with no document, and if ' +
        'no older version can be read: it is locked, deleted, or does not parse, as do the few before it'
    })), null),
    added: namesOfVersion('the names that the version added', ['FOO', 'HELLO']),
    changed: namesOfVersion('the names with another value than before', []),
    removed: namesOfVersion('the names that the version removed; of a deletion, all names', [])
  }, { title: 'VersionNamesAttributes' })
}, { title: 'VersionNames' })
export type VersionNames = Static<typeof VersionNames>

export const VersionNamesAnswer = Answer('VersionNamesAnswer', { data: VersionNames })

/**
 * Limits of one search request. The search ends after `documents` documents, after the document that reaches `bytes` or
 * `names`, or after `projects` projects.
 */
export const SEARCH_LIMITS = { documents: 200, projects: 200, bytes: 8 * 1024 * 1024, names: 1_000 } as const

const ulid = ULID_PATTERN.slice(1, -1)

const AFTER_RULE = '`meta.next` of the previous response, such as 01JQZ6V9T4M8N2K7R5W3X1Y0BC'

export const SearchNamesQuery = Type.Object({
  search: Type.String({
    minLength: 1,
    maxLength: 255,
    description: 'only names that contain this text, in upper or lower case',
    examples: ['hello'],
    'x-named': 'search_in_organization'
  }),
  prefix: Type.Optional(Prefix),
  after: Type.Optional(Patterned(`^${ulid}(\\.${ulid})?$`, AFTER_RULE, {
    maxLength: 53,
    description: '`meta.next` of the previous response',
    'x-named': 'after_in_organization'
  }))
})
export type SearchNamesQuery = Static<typeof SearchNamesQuery>

const FoundAttributes = Type.Object({
  name: Example(Type.String(), 'HELLO'),
  level: Example(LevelName, 'environment'),
  project: Example(Slug, 'orbit'),
  target: Example(Nullable(Slug), 'backend'),
  environment: Example(Nullable(Slug), 'live'),
  project_name: Example(Type.String(), 'Orbit'),
  target_name: Example(Nullable(Type.String()), 'Backend services'),
  environment_name: Example(Nullable(Type.String()), 'Live')
}, { title: 'FoundNameAttributes' })

const FoundName = Type.Object(
  { type: Type.Literal('secret-names'), attributes: FoundAttributes }, { title: 'FoundName' }
)
export type FoundName = Static<typeof FoundName>

export const SearchNamesAnswer = Answer('FoundNameList', {
  data: Type.Array(FoundName, { description: 'sorted by project id, then document id, then name' }),
  meta: Type.Object({
    documents: Example(Type.Integer({ description: 'the documents that were opened for this page' }), 1),
    unreadable: Example(Type.Integer({ description: 'those of them that do not parse, so that their names are unknown' }), 0),
    client_managed: Example(Type.Integer({
      description: 'the client-managed projects that this page leaves out, because the server cannot read their documents'
    }), 0),
    text: Example(Type.Integer({
      description: 'the projects with the `secret_format` text that this page leaves out, because they have no names'
    }), 0),
    next: Example(Nullable(Type.String({ description: 'the `after` of the next page; null at the end' })), null)
  }, { title: 'FoundNamesMeta' })
})
