import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { getTableName, is } from 'drizzle-orm'
import { PgTable } from 'drizzle-orm/pg-core'
import * as tables from '../../src/db/tables.ts'

/** Copies the migrations to a temporary folder and appends further migrations: name → statements. */
export function copyOfMigrations (
  t: { teardown (fn: () => unknown): void }, more: Record<string, readonly string[]> = {}
): string {
  const folder = mkdtempSync(join(tmpdir(), 'strongroom-migrations-'))
  t.teardown(() => { rmSync(folder, { recursive: true }) })
  cpSync('drizzle', folder, { recursive: true })
  const journal = join(folder, 'meta', '_journal.json')
  const all = JSON.parse(readFileSync(journal, 'utf8')) as { entries: { idx: number, when: number }[] }
  for (const [tag, statements] of Object.entries(more)) {
    writeFileSync(join(folder, `${tag}.sql`), statements.join(';--> statement-breakpoint\n'))
    const { idx, when } = all.entries.at(-1)!
    all.entries.push({ ...all.entries.at(-1)!, idx: idx + 1, when: when + 1, tag } as (typeof all.entries)[number])
  }
  writeFileSync(journal, JSON.stringify(all))
  return folder
}

/** The names of the tables in src/db/tables.ts, in order. */
export const tableNames = (): string[] =>
  Object.values(tables).filter((value) => is(value, PgTable)).map((table) => getTableName(table as PgTable)).sort()

/** Tables that most requests use. */
export const HOT = [
  'organizations', 'organization_counters', 'api_tokens', 'projects', 'secrets', 'secret_versions', 'audit_events'
]
/** Migrations that are compatible with running instances of the previous release (0047). */
export const EXPANSIONS: Record<string, string[]> = {
  ...Object.fromEntries(HOT.map((table, i) => [
    `900${i}_${table}`, [`ALTER TABLE "${table}" ADD COLUMN "of_next_release" varchar(64) DEFAULT 'none' NOT NULL`]
  ])),
  '9010_table': [
    `CREATE TABLE "of_next_release" ("organization_id" char(26) NOT NULL, "n" integer NOT NULL,
      CONSTRAINT "of_next_release_pk" PRIMARY KEY ("organization_id", "n"),
      CONSTRAINT "of_next_release_organization" FOREIGN KEY ("organization_id") REFERENCES "organizations" ("id"))`,
    'CREATE INDEX "of_next_release_n" ON "of_next_release" ("organization_id", "n")'
  ],
  '9011_index': [
    'DROP INDEX CONCURRENTLY IF EXISTS "secret_versions_of_next_release"',
    'CREATE INDEX CONCURRENTLY "secret_versions_of_next_release" ON "secret_versions" ("organization_id", "created_at", "id")'
  ]
}

const NAME = '"?(\\w+)"?'
const CONSTANT = "(?:'[^']*'(?:::\\w+)?|-?\\d+|true|false|now\\(\\))"
// These patterns exclude IF NOT EXISTS and CREATE TABLE … AS.
const TABLE = new RegExp(`^CREATE TABLE ${NAME} \\((?!.*\\) AS\\b)`, 'i')
const INDEX = new RegExp(`^CREATE (?:UNIQUE )?INDEX ${NAME} ON ${NAME}`, 'i')
const ALTERATION = new RegExp(`^ALTER TABLE ${NAME} `, 'i')
const CONCURRENT = new RegExp(`^(DROP INDEX CONCURRENTLY IF EXISTS|CREATE INDEX CONCURRENTLY) ${NAME}`, 'i')
const ROWS = new RegExp(`^INSERT INTO ${NAME} (?:\\([\\w", ]+\\) )?VALUES \\((?!.*\\bSELECT\\b)`, 'i')
// Excludes serial types, which rewrite the table to fill each row from a sequence.
const TYPE = '(?!\\w*serial)\\w+(?: ?\\(\\d+\\))?(?: with time zone)?'
const COLUMN =
  new RegExp(`^ALTER TABLE ${NAME} ADD COLUMN ${NAME} ${TYPE}(?: DEFAULT ${CONSTANT}(?: NOT NULL)?)?$`, 'i')

/**
 * The statements of a migration that can break running instances of the previous release, or lock a large table for a
 * long time (0047). Allows new tables with their indexes, alterations and literal rows. Allows new columns that are
 * nullable or have a constant default. Allows a migration of indexes alone that are dropped, in case that an
 * interrupted build left them, and then built concurrently. Also allows a statement after the line
 * `-- contracts RELEASE: why` if RELEASE is published, because that release no longer needs what the statement removes.
 */
export function contractionsIn (migration: string, releases: readonly string[]): string[] {
  const made = new Set<string>()
  const statements = migration.split(/;?\s*--> statement-breakpoint|;\s*$/m).map((text) => text.trim()).filter(Boolean)
  const bare = (text: string) => text.replace(/^\s*--.*$/gm, '').replace(/\s+/g, ' ').trim()
  const concurrent = statements.map((text) => CONCURRENT.exec(bare(text)))
  const rebuilt = concurrent.flatMap((match, i) => {
    const [, drop, name] = match ?? []
    const [, create, same] = concurrent[i + 1] ?? []
    return /^DROP/i.test(drop ?? '') && /^CREATE/i.test(create ?? '') && name === same ? [name] : []
  })

  function expands (text: string): boolean {
    if (text.includes(';')) return false
    const [, table] = TABLE.exec(text) ?? []
    if (table !== undefined) return Boolean(made.add(table))
    const [, , index] = CONCURRENT.exec(text) ?? []
    if (index !== undefined) return concurrent.every((match) => match !== null) && rebuilt.includes(index)
    const of = INDEX.exec(text)?.[2] ?? ALTERATION.exec(text)?.[1] ?? ROWS.exec(text)?.[1]
    return (of !== undefined && made.has(of)) || COLUMN.test(text)
  }

  return statements.filter((text) => {
    const [, release] = /^-- contracts (\S+): \S/m.exec(text) ?? []
    return !expands(bare(text)) && !(release !== undefined && releases.includes(release))
  }).map(bare)
}
