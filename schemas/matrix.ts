import { Type, type Static } from '@sinclair/typebox'
import { NAME_FILTERS } from './names.ts'
import { Custody, SecretFormat } from './projects.ts'
import { LEVELS, LevelName } from './secrets.ts'
import {
  Answer, Example, Flag, ListQuery, Nullable, OneOf, PageMeta, Patterned, SLUG_LENGTH, SLUG_PATTERN, Slug, Ulid,
  exampleOf
} from './shapes.ts'

/** Limits of a page of levels. It ends after `levels` levels, or with the document that reaches `bytes` or `names`. */
export const MATRIX_LIMITS = { levels: 100, bytes: 4 * 1024 * 1024, names: 50_000 } as const

const SLUG = SLUG_PATTERN.slice(1, -1)
const LEVEL_RULE = '`meta.next_levels` of the previous response, such as environment:backend/live'

export const MatrixQuery = Type.Object({
  ...ListQuery.properties,
  ...NAME_FILTERS,
  only: Type.Optional(OneOf(['missing', 'different'], {
    description: '`missing`: only names that are missing at a level of the response; `different`: only names whose values differ between these levels'
  })),
  level: Type.Optional(OneOf(LEVELS, {
    description: 'only levels of this kind as columns, such as `environment`', 'x-named': 'level_of_matrix'
  })),
  levels_after: Type.Optional(Patterned(`^(project|target:${SLUG}|environment:${SLUG}/${SLUG})$`, LEVEL_RULE, {
    maxLength: 'environment:/'.length + 2 * SLUG_LENGTH,
    description: 'only levels after this one: `meta.next_levels` of the previous response',
    examples: ['environment:backend/live']
  })),
  decrypt: Type.Optional(Flag({
    default: true,
    description: 'open the documents and list their names; needs secret:read and secret:decrypt. `false`: only the levels and their versions; needs secret:read or secret:history',
    'x-named': 'decrypt_for_matrix'
  }))
})
export type MatrixQuery = Static<typeof MatrixQuery>

const MatrixLevel = Type.Object({
  level: Example(LevelName, 'environment'),
  id: Example(Ulid, '01JQZ6VD1Q4R7S0T3V6W9X2Y5Z'),
  name: Example(Type.String(), 'Live'),
  target: Example(Nullable(Slug), 'backend'),
  target_name: Example(Nullable(Type.String()), 'Backend services'),
  environment: Example(Nullable(Slug), 'live'),
  status: Example(Nullable(Type.String({ description: 'of the environment; null for other levels' })), 'production'),
  version: Example(Nullable(Type.String({
    description: 'of the document; null without a document, and after a write with `no_backup`'
  })), '1'),
  etag: Example(Nullable(Type.String({
    description: 'of the document, for If-Match of a change; null without a document'
  })), '"m1VJp2b0nQYkWq3S8dT5xg"'),
  unreadable: Example(Type.Boolean({
    description: "true if the document does not parse in the project's `secret_format`: its cells are `unknown`"
  }), false)
}, { title: 'MatrixLevel' })
export type MatrixLevel = Static<typeof MatrixLevel>

/** States of a cell. */
const CELL_STATES = ['set', 'inherited', 'overrides', 'missing', 'unknown'] as const

const MatrixCell = Type.Object({
  state: Example(OneOf(CELL_STATES, {
    description: '`set`: the level has the name; `overrides`: the level has the name, and so has a level above; ' +
      '`inherited`: only a level above has the name; `missing`: none of these levels has the name; `unknown`: the ' +
      'document that decides cannot be parsed'
  }), 'set'),
  from: Type.Optional(OneOf(['project', 'target'], { description: 'of `inherited`: the level with the value' })),
  overrides: Type.Optional(Type.Array(LevelName, {
    description: 'of `overrides`: the levels above that have the name, from the project down'
  })),
  value_group: Type.Optional(Example(Type.Integer({
    description: 'cells of one row with the same number have the same value; the numbers mean nothing else'
  }), 1))
}, { title: 'MatrixCell' })
export type MatrixCell = Static<typeof MatrixCell>

const MatrixName = Type.Object({
  name: Example(Type.String(), 'HELLO'),
  cells: Type.Array(MatrixCell, { description: 'one cell for each level of `levels`, in the same order' })
}, { title: 'MatrixName' })
export type MatrixName = Static<typeof MatrixName>

const Matrix = Type.Object({
  type: Type.Literal('secret-matrix'),
  attributes: Type.Object({
    project: Type.Object({
      name: Example(Type.String(), 'Orbit'),
      secret_format: Example(SecretFormat, 'env'),
      encryption_type: Example(Custody, 'server')
    }, { title: 'MatrixProject' }),
    levels: Type.Array(MatrixLevel, {
      description: 'the columns: the project, then each target by slug, followed by its environments by slug'
    }),
    names: Example(Nullable(Type.Array(MatrixName, {
      description: 'the rows, sorted by name; null with `decrypt=false`'
    })), [exampleOf(MatrixName.properties)])
  }, { title: 'MatrixAttributes' })
}, { title: 'Matrix' })
export type Matrix = Static<typeof Matrix>

export const MatrixAnswer = Answer('MatrixAnswer', {
  data: Matrix,
  meta: Type.Object({
    ...PageMeta.properties,
    next_levels: Nullable(Type.String({
      description: 'the `levels_after` of the next page of levels; null if there are no more levels'
    }))
  }, { title: 'MatrixMeta', examples: [{ ...PageMeta.examples[0], next_levels: null }] })
})
