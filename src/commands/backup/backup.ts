import { existsSync } from 'node:fs'
import { stat } from 'node:fs/promises'
import { dirname, resolve } from 'node:path'
import { ulid } from 'ulidx'
import { loadConfig, readSecretFile, type Config } from '../../config.ts'
import { IntegrityError } from '../../crypto/at-rest.ts'
import { MasterKeyMissing, type Keyring } from '../../crypto/keyring.ts'
import { AGE, decryptWith, encryptTo, RecipientError, type Cipher } from '../../crypto/recipients.ts'
import { endAllConsoles } from '../../db/callers/console-tokens.ts'
import { freeBytes } from '../../db/embedded/copy-cluster.ts'
import { readNow, type Db } from '../../db/database.ts'
import { areUnreleased, canMakeSchema, listMigrations, lockSchema, makeSchema } from '../../db/migrate.ts'
import { counted } from '../../rules/formats/phrases.ts'
import { countOrganizations } from '../../repositories/levels/organizations.ts'
import {
  analyze, clearSeeds, countRows, describeTables, dropTables, findContent, insertRows, lockTableSchemas, LEFT_OUT,
  listNumbered, listUnknownTables, recordRestore, restoreSequences, readRows, disableTimeouts, type Table
} from '../../repositories/operations/dump.ts'
import { beginChain, openChain } from '../../vault/audit/backups.ts'
import {
  createCounter, DamagedBackup, decodeBackup, digestOf, encodeBackup, type Count, type Header, type Part, type Rows
} from './backup-file.ts'
import { writeStreamDurably } from '../common/durable.ts'
import { fileCommand, type Noun } from '../common/noun.ts'
import { lineOf, refuse, StartError } from '../common/command-errors.ts'
import { checkKeys, openToRead, openDatabase, openKeyring, type Opened } from '../common/open.ts'
import { advancing, NO_PROGRESS, withProgress } from '../common/progress.ts'
import { readChunks, shownName, warn, write, writeJson, type Progress } from '../common/stdio.ts'
import { fail, FLAG, TEXT, TEXTS } from '../common/words.ts'

// Backs up the whole database to a file, and restores it into an empty PostgreSQL or embedded database (decision 0046).

export const backupNoun: Noun = {
  help: `  backup FILE [--recipient AGE-RECIPIENT ...] [--json]
                                          back up the database to a file, encrypted if a recipient is given
`,

  run: fileCommand('backup', { recipient: TEXTS, json: FLAG }, async (file, { recipient = [], json }, env) => {
    if (json && file === '-') fail('--json needs a file: with -, standard output is the backup')
    const config = loadConfig(env)
    const isData = file === '-'
    const left = isData ? 'The backup on standard output is incomplete: delete it.' : 'No file was written.'
    const made = await withProgress({ json, isData, left }, (progress) => backup(config, file, recipient, progress))
    const line = `Backed up ${describeSummary(made)}`
    // With `-`, the backup is written to standard output.
    if (file === '-') warn(line)
    else if (json) await writeJson({ ...fieldsOf(made), is_recorded: made.unknown === undefined })
    else await write(`${line}\n`)
    if (made.unknown !== undefined) {
      warn(`The backup is not recorded in the metrics, because the database could not be updated: ${made.unknown}`)
    }
  })
}

export const restoreNoun: Noun = {
  help: `  restore FILE [--identity FILE] [--json] restore a backup into an empty database
`,

  run: fileCommand('restore', { identity: TEXT, json: FLAG }, async (file, { identity, json }, env) => {
    const config = loadConfig(env)
    const left = 'Nothing was restored, and the database was not changed.'
    const restored = await withProgress({ json, left }, (progress) => restore(config, { file, identity }, progress))
    await (json ? writeJson(fieldsOf(restored)) : write(`Restored ${describeSummary(restored)}\n`))
  })
}

export interface Summary { made_at: string, counts: Count[], bytes: number }

/** A completed backup; `unknown` is the reason why the database could not record it. */
export interface Made extends Summary { unknown?: string }

/** The file of a backup, and the file of the age identity that decrypts it. */
export interface Source { file: string, identity?: string | undefined }

/**
 * Writes a snapshot of the database to a file, or to standard output (`-`), encrypted if there are recipients. The file
 * is created atomically. The database records the time of the backup for the metrics.
 */
export async function backup (
  config: Config, file: string, recipients: readonly string[], progress = NO_PROGRESS
): Promise<Made> {
  if (file !== '-' && existsSync(file)) refuse(`${file} already exists`)
  const encrypt = recipients.length === 0
    ? undefined
    : await explained(encryptTo(recipients), (reason) => `--recipient: ${reason}`)
  const opened = await openToRead(config)
  try {
    const known = await describeTables(opened.database.db)
    const summary = await opened.database.snapshot(async (db) => {
      const made = await makeBackup(opened, db, known, progress)
      const chunks = countingBytes(encrypt === undefined ? made.chunks : await encrypt(made.chunks))
      if (file === '-') {
        for await (const chunk of chunks.all) await write(chunk)
      } else {
        await writeStreamDurably(file, chunks.all, 0o600).catch((error: NodeJS.ErrnoException) => {
          if (error.syscall === undefined) throw error
          refuse(error.code === 'EEXIST'
            ? `${file} already exists`
            : `${file} cannot be written (${error.code})`)
        })
      }
      return { made_at: made.header.made_at, counts: made.counts(), bytes: chunks.bytes() }
    })
    progress.leaves('The backup is complete; it is not recorded in the metrics.')
    // The backup is complete, so an error while it is recorded is only a warning (`unknown`). Recording fails in a
    // read-only database, and with an older schema.
    const { made_at, bytes } = summary
    return await opened.note({ made_at, bytes }).then(() => summary,
      (error: unknown) => ({ ...summary, unknown: lineOf(error) }))
  } finally {
    await opened.database.close()
  }
}

// First locks the tables in `known`, so that a concurrent migration cannot change them. On PostgreSQL, the first query
// after the locks takes the snapshot; on Citus, `Database.snapshot` has already taken the snapshots of the nodes.
async function makeBackup (
  { keyring, database: { where } }: Opened, db: Db, known: readonly Table[], progress: Progress
) {
  await disableTimeouts(db)
  await lockTableSchemas(db, known)
  const migrations = await listMigrations(db)
  const tables = (await describeTables(db)).filter(({ name }) => !Object.hasOwn(LEFT_OUT, name))
  if (migrations.length > 0 && !canMakeSchema(migrations)) {
    refuse('The database has migrations that this build does not know: back it up with the build that made them')
  }
  // A database without organizations is probably the wrong database.
  if (migrations.length === 0 || await countOrganizations(db) === 0) {
    refuse(`Nothing to back up: ${where} contains no organization`)
  }
  const strange = await listUnknownTables(db)
  if (strange.length > 0) {
    refuse(`Tables unknown to this build would be missing from the backup: ${strange.slice(0, 10).join(', ')}`)
  }
  if (!tables.every(({ name }) => known.some((table) => table.name === name))) {
    refuse('The schema is being migrated: run the command again')
  }
  const id = ulid()
  const { next, wrapped } = beginChain(keyring, id)
  // Read the sequences after the snapshot is taken, so that they include all numbers in the snapshot.
  const numbered = await listNumbered(db, tables)
  // Use the database's clock, which also computes the age of the backup. A wrong local clock can hide that a backup is
  // old.
  const made_at = new Date(await readNow(db)).toISOString()
  const header: Header = { id, made_at, wrapped, migrations, tables, numbered }
  const counter = createCounter(tables)
  const { counts } = counter
  progress.begin('Backing up', 'rows', await countRows(db, tables))
  return { header, chunks: encodeBackup(next, header, readAll(db, tables, counter, progress), counts), counts }
}

async function * readAll (
  db: Db, tables: readonly Table[], counter: ReturnType<typeof createCounter>, progress: Progress
): AsyncGenerator<Rows> {
  for (const [table, shape] of tables.entries()) {
    for await (const rows of readRows(db, shape)) {
      progress.advance(rows.length)
      counter.add({ table, rows })
      yield { table, rows }
    }
  }
}

/**
 * Restores a backup into an empty database in one transaction, then migrates the schema. A file is verified completely
 * before the restore begins, and standard input (`-`) while it is restored.
 */
export async function restore (config: Config, source: Source, progress = NO_PROGRESS): Promise<Summary> {
  if (config.databaseUrl === undefined) await refuseWithoutRoom(source, config.dataDir)
  const keyring = await openKeyring(config)
  const read = await openBackup(keyring, source, progress)
  const database = await openDatabase(config)
  try {
    const restored = await database.maintain((db) => restoreInto(db, keyring, read(), progress), 'takes in a backup')
    progress.leaves('Everything was restored; the next start brings the schema up to date.')
    await database.migrate(progress.signal)
    return restored
  } finally {
    await database.close()
  }
}

/**
 * Throws a StartError if the free space of the directory, or of its nearest existing parent, is less than the size of
 * the file. The embedded database needs more space than the file.
 */
export async function refuseWithoutRoom ({ file }: Source, directory: string): Promise<void> {
  let dir = resolve(directory)
  while (!existsSync(dir)) dir = dirname(dir)
  // Ignore an error of `stat`, because a later read of the file reports the error.
  const size = file === '-' ? 0 : await stat(file).then(({ size }) => size, () => 0)
  const free = freeBytes(dir)
  if (free < size) refuse(`Not enough disk space in ${dir}: ${file} has ${size} bytes, but only ${free} are free`)
}

/**
 * Returns a function that reads a backup. A file is verified completely before `openBackup` returns, and standard input
 * while the function reads it. Throws a DamagedBackup, or a StartError if a key or the identity is missing or wrong.
 */
export async function openBackup (
  keyring: Keyring, { file, identity }: Source, progress = NO_PROGRESS
): Promise<() => AsyncGenerator<Part>> {
  const decrypt = identity === undefined
    ? undefined
    : await explained(decryptWith(readSecretFile(identity, '--identity')), (reason) => `--identity: ${reason}`)
  const begin = (header: Header) => {
    try {
      return openChain(keyring, header)
    } catch (error) {
      if (error instanceof MasterKeyMissing) {
        refuse(`Master key ${error.id} is missing: ${shownName(file)} was made under it. ` +
          'Set it in MASTER_KEY or MASTER_KEYS_PREVIOUS')
      }
      if (error instanceof IntegrityError) {
        // `idOf` throws an IntegrityError if the wrapped key is malformed.
        const key = keyring.idOf(header.wrapped)
        refuse(`Master key ${key} is wrong: ${shownName(file)} was made under a different key with this id`)
      }
      throw error
    }
  }
  // Ignore an error of `stat`, because the read of the file reports the error.
  const size = file === '-' ? undefined : await stat(file).then((found) => found.isFile() ? found.size : undefined, () => undefined)
  const read = (step: string) => {
    progress.begin(step, 'bytes', size)
    return decodeBackup(shownName(file), opened(file, decrypt, progress), begin)
  }
  if (file !== '-') await drain(read('Verifying the backup'))
  return () => read('Restoring')
}

/** Restores a backup into an empty database, in the caller's transaction, and compares the digests of the rows. */
export async function restoreInto (
  db: Db, keyring: Keyring, parts: AsyncGenerator<Part>, progress = NO_PROGRESS
): Promise<Summary> {
  await disableTimeouts(db)
  await lockSchema(db)
  const content = await findContent(db)
  if (content !== undefined) refuse(`The database is not empty (found ${content}): restore into an empty database`)
  let header: Header | undefined
  let tables: Table[] = []
  for await (const part of parts) {
    if (part.kind === 'header') {
      header = part.header
      await becomeSchema(db, header.migrations)
      tables = tablesOf(header, await describeTables(db))
      await clearSeeds(db, tables)
    } else if (part.kind === 'rows') await insertRows(db, tables[part.table]!, part.rows)
    else {
      const { counts, bytes } = part
      await restoreSequences(db, header!.numbered)
      await checkKeys({ db }, keyring)
      const there = createCounter(tables)
      progress.begin('Comparing', 'rows', counts.reduce((sum, { rows }) => sum + rows, 0))
      await drain(readAll(db, tables, there, progress))
      if (digestOf(there.counts()) !== digestOf(counts)) {
        refuse('The restored rows differ from the backup')
      }
      await recordRestore(db)
      await endAllConsoles(db)
      await analyze(db)
      return { made_at: header!.made_at, counts, bytes }
    }
  }
  throw new Error('a backup has an end')
}

// Gives the database the schema of the backup. A new embedded database may already have this schema. If not, drops all
// tables and creates them with the migrations of the backup.
async function becomeSchema (db: Db, migrations: readonly string[]): Promise<void> {
  if (JSON.stringify(await listMigrations(db)) === JSON.stringify(migrations)) return
  if (areUnreleased(migrations)) refuse('This backup was made by an unreleased build of Strongroom and cannot be restored.')
  await dropTables(db)
  if (!await makeSchema(db, migrations)) {
    refuse('The backup was made by a newer or different build: restore it with that build')
  }
}

// Returns the matching tables of the catalogue, so that SQL statements contain no names from the file.
function tablesOf (header: Header, found: readonly Table[]): Table[] {
  return header.tables.map((table) => {
    const same = found.find(({ name }) => name === table.name)
    if (JSON.stringify(same) !== JSON.stringify(table)) {
      refuse(`The table ${JSON.stringify(table.name)} of the backup does not match the schema`)
    }
    return same!
  })
}

export const rowsIn = ({ counts }: Summary, name: string): number =>
  counts.find(({ table }) => table === name)?.rows ?? 0

/** The fields of a summary in the output of `--json`. */
export const fieldsOf = ({ made_at, bytes, counts }: Summary) => ({
  made_at, bytes, digest: digestOf(counts), tables: Object.fromEntries(counts.map(({ table, rows }) => [table, rows]))
})

export function describeSummary (summary: Summary): string {
  const { counts, bytes, made_at } = summary
  const organizations = counted(rowsIn(summary, 'organizations'), 'organization')
  const versions = counted(rowsIn(summary, 'secret_versions'), 'version')
  const events = counted(rowsIn(summary, 'audit_events'), 'event')
  const rows = counts.reduce((sum, count) => sum + count.rows, 0)
  return `${organizations}, ${versions}, ${events}; ` +
    `${counted(rows, 'row')} in ${counted(counts.length, 'table')}, ${counted(bytes, 'byte')}, as of ${made_at}, digest ${digestOf(counts)}`
}

async function * opened (
  file: string, decrypt: Cipher | undefined, progress: Progress
): AsyncGenerator<Uint8Array> {
  const { first, all } = await peek(advancing(readChunks(file), progress))
  if (!first.equals(AGE)) {
    yield * all
    return
  }
  if (decrypt === undefined) refuse(`${shownName(file)} is encrypted: pass its identity with --identity FILE`)
  try {
    yield * await explained(decrypt(all), (reason) =>
      `${shownName(file)} cannot be decrypted with --identity: ${reason}; wrong identity or damaged file`)
  } catch (error) {
    if (error instanceof StartError) throw error
    throw new DamagedBackup(`${shownName(file)} is damaged: decryption failed`)
  }
}

// Returns the first bytes of a stream, and the whole stream with these bytes.
async function peek (chunks: AsyncGenerator<Buffer>) {
  let head = Buffer.alloc(0)
  while (head.length < AGE.length) {
    const { value, done } = await chunks.next()
    if (done) break
    head = Buffer.concat([head, value])
  }
  async function * all () {
    yield head
    yield * chunks
  }
  return { first: head.subarray(0, AGE.length), all: all() }
}

function countingBytes (chunks: AsyncIterable<Uint8Array>) {
  let bytes = 0
  async function * all () {
    for await (const chunk of chunks) {
      bytes += chunk.length
      yield chunk
    }
  }
  return { all: all(), bytes: () => bytes }
}

async function drain (all: AsyncGenerator<unknown>): Promise<void> {
  while (!(await all.next()).done);
}

async function explained<T> (work: Promise<T>, line: (reason: string) => string): Promise<T> {
  try {
    return await work
  } catch (error) {
    throw error instanceof RecipientError ? new StartError(line(error.message)) : error
  }
}
