// runs: no database
import { getTableColumns, sql } from 'drizzle-orm'
import { bigint, integer, jsonb, pgTable, PgDialect, primaryKey, text, timestamp } from 'drizzle-orm/pg-core'
import t from 'tap'
import { authenticated, bytea, exempt, hidden, later, presence } from '../../src/db/columns.ts'
import { AUTHENTICATED, declarationOf, shownColumns, shownOf } from '../../src/db/rows/authenticated.ts'
import { joined, readerOf } from '../../src/db/rows/joined.ts'

t.test('a table says of each column whether the MAC covers it, why not, and whether it is shown', async (t) => {
  const notes = authenticated('notes', {
    organization_id: hidden(text().notNull()),
    seats: later(integer()),
    id: text().notNull(),
    token_hash: bytea().notNull(),
    sealed: presence(bytea()),
    wrapped: exempt('Does not open', bytea()),
    secret_name: hidden(exempt('Found by it', text())),
    other_name: exempt('Found by it', hidden(text())),
    places: hidden(later(integer())),
    created_at: exempt('Only shown', timestamp().notNull())
  }, (table) => [primaryKey({ columns: [table.organization_id, table.id] })])
  t.strictSame(declarationOf(notes), {
    table: notes,
    key: ['organization_id', 'id'],
    fields: ['organization_id', 'id', 'token_hash', 'sealed', 'seats', 'places'],
    presence: ['sealed'],
    later: ['seats', 'places'],
    exempt: {
      wrapped: 'Does not open', secret_name: 'Found by it', other_name: 'Found by it', created_at: 'Only shown'
    },
    shown: ['seats', 'id', 'created_at']
  })
  t.strictSame(Object.keys(getTableColumns(notes)).at(-1), 'mac')
  t.strictSame(declarationOf(authenticated('marks', { id: integer().primaryKey() })).key, ['id'])
})

t.test('a column that came after a release can be null', async (t) => {
  for (const [name, { table, later }] of Object.entries(AUTHENTICATED)) {
    const columns = getTableColumns(table) as Record<string, { notNull: boolean }>
    t.strictSame(later.filter((column) => columns[column]!.notNull), [], name)
  }
})

t.test('no response shows a hash, a key, sealed content, a MAC, or a person behind a token', async (t) => {
  t.strictSame(AUTHENTICATED.api_tokens.shown, [
    'id', 'name', 'description', 'token_prefix', 'token_suffix', 'abilities', 'slices', 'expires_at', 'last_used_at',
    'created_by_type', 'created_by_id', 'created_by_name', 'created_at', 'updated_at'
  ])
  t.strictSame(Object.keys(shownColumns('users')), [
    'id', 'email', 'name', 'is_verified', 'disabled_at', 'second_factor_id', 'created_at', 'updated_at'
  ])
  t.strictSame(AUTHENTICATED.teams.shown, ['id', 'name', 'slug', 'description', 'created_at', 'updated_at'])
  const at = new Date(0)
  const team = {
    id: '1',
    organization_id: '2',
    name: 'A',
    slug: 'a',
    description: null,
    created_at: at,
    updated_at: at,
    is_of_place: null,
    mac: null
  }
  const { organization_id: _, mac: __, is_of_place: ___, ...shown } = team
  t.strictSame(shownOf('teams', team), shown)
  for (const { shown, table } of Object.values(AUTHENTICATED)) {
    const columns = getTableColumns(table) as Record<string, { getSQLType (): string }>
    t.notOk(shown.some((name) => columns[name]!.getSQLType() === 'bytea' || name === 'mac'))
  }
})

const things = pgTable('things', {
  id: bigint({ mode: 'number' }).primaryKey(),
  count: integer(),
  bytes: bytea(),
  at: timestamp({ mode: 'date', withTimezone: true }),
  names: text().array(),
  details: jsonb(),
  name: text()
})

t.test('values of a row are read as the columns declare, from a statement and from JSON', async (t) => {
  const at = new Date('2026-11-30T01:02:03.456Z')
  const values = { count: 3, bytes: Buffer.from('ab'), at, names: ['x'], details: { a: 1 }, name: '1' }
  const read = readerOf(getTableColumns(things))
  t.strictSame(read({ ...values, id: '9007199254740991', at: at.toISOString(), more: 1 }), {
    id: 9007199254740991, ...values
  })
  t.strictSame(read({ ...values, id: 7, bytes: '\\x6162', at: '2026-11-30T01:02:03.456+00:00' }), { id: 7, ...values })
  const none = { count: null, bytes: null, at: null, names: null, details: null, name: null }
  t.strictSame(read({ id: 0, ...none }), { id: 0, ...none }, 'null stays null')
})

t.test('a joined table is selected and read by its alias', async (t) => {
  const { id, name, names } = getTableColumns(things)
  const thing = joined('t', { id, name, names }, { instead: { name: sql`lower(t.name)` } })
  const textOf = (statement: typeof thing.selected) => new PgDialect().sqlToQuery(statement).sql
  t.equal(textOf(thing.names), 'id, name, names')
  t.equal(textOf(thing.selected), 't.id AS t_id, lower(t.name) AS t_name, to_jsonb(t.names) AS t_names')
  t.strictSame(thing.read({ t_id: '5', t_name: null, t_names: ['a'], id: 6 }), { id: 5, name: null, names: ['a'] })
  t.equal(thing.read({ t_id: null, t_name: null, t_names: null }), null, 'no row was joined')
  const some = joined('t', { id }, { when: sql`q.wanted` })
  t.equal(textOf(some.selected), 'CASE WHEN q.wanted THEN t.id END AS t_id')
})
