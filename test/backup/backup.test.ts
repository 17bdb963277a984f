// runs: one database; 35 s
import { type ChildProcess, spawn } from 'node:child_process'
import { EventEmitter, once } from 'node:events'
import { existsSync, mkdirSync, readdirSync, readFileSync, statSync, symlinkSync, truncateSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import { Readable } from 'node:stream'
import { buffer } from 'node:stream/consumers'
import { generateX25519Identity, identityToRecipient } from 'age-encryption'
import { sql } from 'drizzle-orm'
import t, { type Test } from 'tap'
import { CONSOLE_CLIENT } from '../../schemas/console.ts'
import { buildApp } from '../../src/app.ts'
import { rotateChainKey, verifyDatabase } from '../../src/commands/audit/audit.ts'
import { decodeBackup, encodeBackup, type Count, type Header } from '../../src/commands/backup/backup-file.ts'
import { openBackup, restoreInto } from '../../src/commands/backup/backup.ts'
import { writeStreamDurably } from '../../src/commands/common/durable.ts'
import { open } from '../../src/commands/common/open.ts'
import { makeScratch } from '../../src/commands/common/scratch.ts'
import { loadConfig } from '../../src/config.ts'
import { encryptTo } from '../../src/crypto/recipients.ts'
import { generateMasterKey } from '../../src/crypto/keyring.ts'
import { sha256 } from '../../src/crypto/primitives.ts'
import { connect, type Database } from '../../src/db/database.ts'
import { serveRequests } from '../../src/db/embedded/requests.ts'
import { lockDirectory } from '../../src/db/embedded/lock.ts'
import { listMigrations, makeSchema } from '../../src/db/migrate.ts'
import { listStoredKeys } from '../../src/repositories/secrets/sealed.ts'
import { noteBackup } from '../../src/repositories/operations/backlog.ts'
import { describeTables, dropTables, findContent, LEFT_OUT } from '../../src/repositories/operations/dump.ts'
import { beginChain, openChain } from '../../src/vault/audit/backups.ts'
import { dataKeyOf, keyStringOf } from '../../src/vault/keys/keys.ts'
import { Anchors } from '../../src/vault/audit/verification.ts'
import { startIsolatedApp } from '../helpers/app.ts'
import { QUICK } from '../helpers/costs.ts'
import { LONG } from '../helpers/long.ts'
import { OPERATIONS, prepare, send, settle } from '../helpers/operations.ts'
import { giveSecondFactor, issuePair, makePerson } from '../helpers/people.ts'
import { CLI, command, emptyPlace, run, scratchDirectory, type Ended } from '../helpers/process.ts'
import { beside } from '../helpers/statements.ts'
import { ON_POSTGRES } from '../helpers/traffic.ts'
import { until } from '../helpers/until.ts'

t.setTimeout(240_000)

type Env = Record<string, string>

const CANARY = 'canary-4b1d9e-of-a-document'

const connectTo = ({ DATABASE_URL, DATA_DIR }: Env) => connect(DATABASE_URL === undefined
  ? { dir: join(DATA_DIR!, 'postgres'), pool: 1, durable: false }
  : { url: DATABASE_URL, pool: 2 })

const digestOf = ({ stdout, stderr }: Ended) => /digest ([0-9a-f]{64})\n/.exec(stdout)?.[1] ?? `${stdout}${stderr}`

/** Asserts one matching line on standard error, this exit status, and an empty standard output. */
function refused (t: Test, { code, stdout, stderr }: Ended, line: RegExp, status = 1) {
  t.match(stderr, line)
  t.match(stderr, /^[^\n]+\n$/, 'one line')
  t.same([code, stdout], [status, ''])
}

/** A service with rows in every table of a backup, and functions that make backups of it. */
async function startFilled () {
  // This test has its own database, because it makes a backup of the whole database.
  const service = await startIsolatedApp(t)
  const { caller, ids, person: { access } } = await settle(service, 'kept')
  const { organization: o } = caller
  const person = await makePerson(service, { [o]: 'owner' })
  await giveSecondFactor(service, person)
  for (const [id, row] of Object.entries(OPERATIONS)) {
    // Skips deletions, so that the backup contains the deleted resources.
    if (!/^(delete|remove)/.test(id)) {
      await prepare(service, row, ids)
      await send(service, row, ids, row.access === 'public' ? undefined : row.byPerson ? access : caller.token)
    }
  }
  await caller.call('POST', `/${o}/projects`, { name: 'Canary', slug: 'canary' })
  for (const plaintext of ['OLD=1\n', `NEW=${CANARY}\n`]) {
    const { status, text } = await caller.call(
      'POST', `/${o}/secrets/store`, { project: 'canary', plaintext }
    )
    if (status !== 200) throw new Error(text)
  }
  await caller.call('POST', `/organizations/${o}/api-keys`, { name: 'Once', abilities: ['secret:read'] }, {
    'idempotency-key': 'once'
  })
  const renamed = await service.organization({ slug: 'former-name' })
  await renamed.call('PATCH', `/organizations/${renamed.organization}`, { slug: 'present-name' })
  await service.rotate((await service.token(o, ['secret:read'])).token, 3600)
  await rotateChainKey(service.database.db, service.keyring, o)
  await service.sql(`INSERT INTO sign_in_devices (token_hash, user_id, expires_at) VALUES ('\\x01', ${person.id}, now())`)
  await service.sql("INSERT INTO sign_in_failures (key, failures) VALUES ('\\x00ff', 3)")
  await service.sql(`INSERT INTO credits (organization_id, currency, amount) VALUES ('${o}', 'EUR', 5)`)
  await service.sql(`INSERT INTO api_usage (organization_id, day, calls) VALUES ('${o}', '2026-03-01', 7)`)
  await service.sql(`INSERT INTO re_encryptions (organization_id, project_id, total, finished_at)
    SELECT organization_id, id, 1, now() FROM projects WHERE organization_id = '${o}' AND slug = 'canary'`)
  return { service, caller }
}

const { service, caller } = await startFilled()
const folder = scratchDirectory(t)
let files = 0
const nextFile = () => join(folder, `${++files}.backup`)
/** Makes a backup of the service. Returns the file. */
const backUp = async (...more: string[]) => {
  const file = nextFile()
  const ended = await command(['backup', file, ...more], service.env)
  if (ended.code !== 0) throw new Error(ended.stderr)
  return { file, digest: digestOf(ended), ended }
}
const { MASTER_KEY = '' } = service.env
const withKey = (place: Env): Env => ({ ...place, MASTER_KEY })
/** Runs a drill. The command has only the backup file and the master key. */
const drill = (file: string, ...more: string[]) => command(['drill', file, ...more], { MASTER_KEY })

t.test('a backup restores with the same rows, on either database, and the service goes on from there', async (t) => {
  const first = await backUp()
  t.match(first.ended.stdout,
    /^Backed up \d+ organizations?, \d+ versions?, \d+ events?; \d+ rows in \d+ tables, \d+ bytes, as of \S+Z, digest /)
  const embedded = withKey(await emptyPlace(t, 'embedded'))
  const restored = await command(['restore', first.file], embedded)
  t.equal(restored.code, 0, restored.stderr)
  t.equal(restored.stdout.replace('Restored', 'Backed up'), first.ended.stdout, 'and it says what it brought')
  const again = nextFile()
  t.equal(digestOf(await command(['backup', again], embedded)), first.digest, 'the same rows')
  if (LONG || !ON_POSTGRES) await goesOn(t, embedded)
  if (!ON_POSTGRES) return

  const onServer = withKey(await emptyPlace(t))
  t.equal(digestOf(await command(['restore', again], onServer)), first.digest, 'and the other way round')
  t.equal(digestOf(await command(['backup', nextFile()], onServer)), first.digest)
  await goesOn(t, onServer)
})

/** Checks that the service on a restored database can read and write, and that its audit log is valid. */
async function goesOn (t: Test, env: Env) {
  const { database, keyring } = await open(loadConfig(env), { creates: true })
  const config = loadConfig({ RATE_LIMIT_API: '0', LOG_LEVEL: 'silent' })
  const app = await buildApp({ config, database, keyring, costs: QUICK })
  t.teardown(async () => {
    await app.close()
    await database.close()
  })
  const call = async (method: 'GET' | 'POST' | 'PATCH', path: string, payload?: object) => {
    const answer = await app.inject({
      method, url: `/api/v1${path}`, headers: { authorization: `Bearer ${caller.token}` }, ...(payload && { payload })
    })
    return { status: answer.statusCode, body: answer.json() }
  }
  const o = caller.organization
  const before = await caller.call('POST', `/${o}/secrets/versions`, { project: 'canary', level: 'project' })
  const there = await call('POST', `/${o}/secrets/versions`, { project: 'canary', level: 'project' })
  t.strictSame(there, { status: 200, body: before.body }, 'the history is as it was')
  t.match(await call('GET', `/${o}/canary/secrets?decrypt=true`), {
    status: 200, body: { data: { attributes: { levels: { project: { content: `NEW=${CANARY}\n` } } } } }
  })
  const { body } = await call('POST', `/${o}/secrets/store`, { project: 'canary', plaintext: 'NEXT=1\n' })
  t.ok(Number(body.data.version) > Number(before.body.data[0].id), 'numbers go on')
  t.match(await call('PATCH', `/organizations/${o}`, { slug: 'former-name' }), {
    status: 422, body: { error: 'slug_taken' }
  }, 'a former slug is still reserved')
  t.match(await call('POST', `/${o}/projects`, { name: 'Next' }), { status: 201 })
  for await (const { broken } of verifyDatabase({ database, keyring }, {}, new Anchors())) t.equal(broken, null)
}

t.test('each table comes along or is left out for a reason, and none that does needs one that does not', async (t) => {
  const tables = await describeTables(service.database.db)
  const { file } = await backUp()
  let counts: Count[] = []
  for await (const part of (await openBackup(service.keyring, { file }))()) {
    if (part.kind === 'end') counts = part.counts
  }
  t.strictSame(
    [...counts.map(({ table }) => table), ...Object.keys(LEFT_OUT)].sort(), tables.map(({ name }) => name).sort()
  )
  // These tables have rows only while another transaction holds a lock or a background job has work.
  const mayBeEmpty = ['late_events', 'organization_removals', 'token_removals']
  t.strictSame(counts.filter(({ table, rows }) => rows === 0 && !mayBeEmpty.includes(table)), [])
})

t.test('a restore needs an empty database, and changes no other', async (t) => {
  const { file, digest } = await backUp()
  refused(t, await command(['restore', file], service.env), ON_POSTGRES
    ? /^The database is not empty \(found public\.\w+\): restore into an empty database\n/
    : /in use by process/)
  t.equal((await backUp()).digest, digest)

  const place = withKey(await emptyPlace(t))
  t.equal((await command(['migrate'], place)).code, 0)
  const migrations = await listMigrations(service.database.db)
  const database = await connectTo(place)
  await beside(async () => {
    for (const [what, made] of OF_OTHERS) {
      const restored = database.maintain(async (db) => {
        await db.execute(sql.raw(made))
        return await restoreInto(db, service.keyring, decodeBackup('It', none(), () => { throw new Error('is read') }))
      })
      await t.rejects(restored, { message: new RegExp(`^The database is not empty \\(found ${what}\\): `) }, made)
    }
    // `dropTables` must not remove objects of other applications.
    await database.db.execute(sql`CREATE FUNCTION drizzle.of_another () RETURNS int LANGUAGE sql AS 'SELECT 1'`)
    await database.maintain(async (db) => {
      await dropTables(db)
      t.same(await describeTables(db), [])
      t.ok(await makeSchema(db, migrations))
    })
  })
  await database.close()
  t.equal(digestOf(await command(['restore', file], place)), digest, 'one that was only migrated is empty')
  t.same(await query(place, 'SELECT drizzle.of_another() AS there'), [{ there: 1 }])
})

/** Objects of other applications, with the statements that create them. */
const OF_OTHERS = [
  ['public.of_another', 'CREATE TABLE of_another (id int)'],
  ['public.of_another', 'CREATE VIEW of_another AS SELECT 1 AS one'],
  ['public.of_another', 'CREATE MATERIALIZED VIEW of_another AS SELECT 1 AS one'],
  ['public.of_another', 'CREATE SEQUENCE of_another'],
  ['another.precious', 'CREATE SCHEMA another CREATE TABLE precious (id int)'],
  ['drizzle.precious', 'CREATE TABLE drizzle.precious (id int)'],
  ['drizzle.__drizzle_migrations', "INSERT INTO drizzle.__drizzle_migrations (hash, created_at) VALUES ('theirs', 1)"],
  // Without the ledger of migrations, the service cannot recognize an empty table with the name of its own table.
  ['public.\\w+', 'DELETE FROM drizzle.__drizzle_migrations']
] as const

t.test('what this build does not know is not left out of a backup: there is none', async (t) => {
  const place = withKey(await emptyPlace(t))
  const { file } = await backUp()
  t.equal((await command(['restore', file], place)).code, 0)
  const refusedAs = async (made: string, line: RegExp) => {
    const out = nextFile()
    await query(place, made)
    refused(t, await command(['backup', out], place), line)
    t.notOk(existsSync(out))
  }
  await query(place, 'CREATE VIEW of_another AS SELECT 1 AS one')
  t.equal((await command(['backup', nextFile()], place)).code, 0, 'what has no rows of its own is not missed')
  await refusedAs('CREATE TABLE "of a newer build" (id int)',
    /^Tables unknown to this build would be missing from the backup: public\."of a newer build"\n/)
  await refusedAs("INSERT INTO drizzle.__drizzle_migrations (hash, created_at) SELECT 'newer', max(created_at) + 1 FROM drizzle.__drizzle_migrations",
    /^The database has migrations that this build does not know: back it up with the build that made them\n/)
})

t.test('what no organization is in is not backed up, nothing is made to look, and the drill tells', async (t) => {
  const file = nextFile()
  const typo = { MASTER_KEY, DATA_DIR: join(folder, 'never-made') }
  refused(t, await command(['backup', file], typo),
    /^There is no folder \/\S+\/never-made \(DATA_DIR\): set DATA_DIR or DATABASE_URL as for the service\n/)
  refused(t, await command(['backup', file], { DATA_DIR: typo.DATA_DIR }), /^There is no folder /)
  t.notOk(existsSync(typo.DATA_DIR))
  const isBoth = LONG && ON_POSTGRES
  for (const place of [await emptyPlace(t), ...isBoth ? [await emptyPlace(t, 'embedded')] : []].map(withKey)) {
    const { host, pathname } = new URL(place.DATABASE_URL ?? `file://${place.DATA_DIR}/postgres`)
    const line = `Nothing to back up: ${host}${pathname} contains no organization\n`
    if (ON_POSTGRES && place.DATABASE_URL !== undefined) {
      t.same(await command(['backup', file], place), { code: 1, stdout: '', stderr: line }, 'one without tables')
    }
    t.equal((await command(['migrate'], place)).code, 0)
    t.same(await command(['backup', file], place), { code: 1, stdout: '', stderr: line }, 'one without rows')
  }
  t.notOk(existsSync(file))

  await writeStreamDurably(file, encodeBackup(...await ofNothing()), 0o600)
  const { code, stdout, stderr } = await drill(file)
  t.same([code, stderr], [1, 'The backup contains no organization: check that it is from the right database\n'])
  t.match(stdout, /^Restored 0 organizations[^]*\nThe drill found 1 fault\.\n$/)
})

/** A backup of the schema without rows, with changes of its header. */
async function ofNothing (said: Partial<Header> = {}, counts: Count[] = []) {
  const { next, wrapped } = beginChain(service.keyring, 'one')
  const migrations = await listMigrations(service.database.db)
  const made_at = new Date().toISOString()
  const header: Header = { id: 'one', made_at, wrapped, migrations, tables: [], numbered: [], ...said }
  return [next, header, none(), () => counts] as const
}

async function * none () {}

/** Runs SQL in a database without a running service. */
async function query (place: Env, text: string): Promise<Record<string, unknown>[]> {
  const database = await connectTo(place)
  try {
    return await beside(async () => await database.db.execute(sql.raw(text)) as unknown as Record<string, unknown>[])
  } finally {
    await database.close()
  }
}

/** The offsets of the frames of a backup, and its end. */
function framesOf (bytes: Buffer): number[] {
  const places = ['strongroom backup 1\n'.length]
  while (places.at(-1)! < bytes.length) places.push(places.at(-1)! + 5 + bytes.readUInt32BE(places.at(-1)! + 1) + 32)
  return places
}

const flipped = (bytes: Buffer, at: number) => {
  const other = Buffer.from(bytes)
  other[at]! ^= 1 << (at % 8)
  return other
}

t.test('what has no room is not begun, and the line says where', async (t) => {
  const file = nextFile()
  writeFileSync(file, '')
  truncateSync(file, 2 ** 43)
  const line = /^Not enough disk space in \/[^ ]+: \S+ has 8796093022208 bytes, but only \d+ are free\n/
  refused(t, await drill(file), line, 2)
  const place = { MASTER_KEY, DATA_DIR: join(folder, 'never', 'made') }
  refused(t, await command(['restore', file], place), line)
  t.notOk(existsSync(join(folder, 'never')))
})

t.test('a damage anywhere is found, by the drill and before anything is restored', async (t) => {
  const { file } = await backUp()
  const bytes = readFileSync(file)
  const frames = framesOf(bytes)
  const frame = (i: number) => bytes.subarray(frames.at(i), frames.at(i + 1) ?? bytes.length)
  const [first, last] = [frames[0]!, frames.at(-2)!]
  t.ok(frames.length > 30)
  const damages: Record<string, Buffer> = {
    'cut off in the middle': bytes.subarray(0, bytes.length / 2),
    'cut off before its last frame': bytes.subarray(0, last),
    'cut off before its last byte': bytes.subarray(0, -1),
    empty: Buffer.alloc(0),
    'a frame is gone': Buffer.concat([bytes.subarray(0, frames[5]), bytes.subarray(frames[6])]),
    'a frame came twice': Buffer.concat([bytes.subarray(0, frames[6]), bytes.subarray(frames[5])]),
    'two frames are swapped': Buffer.concat(
      [bytes.subarray(0, frames[5]), frame(6), frame(5), bytes.subarray(frames[7])]
    ),
    'the end is before the last rows': Buffer.concat([bytes.subarray(0, frames.at(-3)), frame(-2), frame(-3)]),
    'something is behind the end': Buffer.concat([bytes, Buffer.alloc(1)])
  }
  for (let i = 0; i < 16; i++) {
    const at = Math.floor(bytes.length * i / 16)
    damages[`a bit of byte ${at}`] = flipped(bytes, at)
  }
  for (const [what, at] of Object.entries({
    'kind of a frame': last,
    'length of a frame': first + 3,
    'digest of the header': first + 5,
    'first MAC': frames[1]! - 1,
    'last MAC': bytes.length - 1
  })) damages[`a bit of the ${what}`] = flipped(bytes, at)
  const place = { MASTER_KEY, DATA_DIR: join(folder, 'never-made') }
  for (const [what, content] of Object.entries(damages)) {
    const damaged = nextFile()
    writeFileSync(damaged, content)
    const drilled = await drill(damaged)
    t.same([drilled.code, drilled.stdout], [1, 'The drill found 1 fault.\n'], what)
    t.match(drilled.stderr, /^\S+ (is damaged|is truncated|has trailing data|is not a backup).*\n$/)
    const restored = await command(['restore', damaged], place)
    t.same([restored.code, restored.stdout, restored.stderr], [1, '', drilled.stderr])
  }
  t.notOk(existsSync(place.DATA_DIR), 'no database was even made')
})

t.test('a bit of any byte that is another one is found, encrypted or not', async (t) => {
  const [mine, file] = [await generateX25519Identity(), nextFile()]
  const identity = `${file}.identity`
  writeFileSync(identity, mine, { mode: 0o600 })
  const tables = [{ name: 'users', columns: [{ name: 'id', type: 'bigint' }], key: ['id'] }]
  async function * rows () { yield { table: 0, rows: [[Buffer.from('1')], [null]] } }
  const [next, header, , counts] = await ofNothing({ migrations: ['one'], tables })
  const plain = await buffer(encodeBackup(next, header, rows(), counts))
  const encrypt = await encryptTo([await identityToRecipient(mine)])
  const encrypted = await buffer(Readable.from(await encrypt(streamOf(plain))))
  // Flips each byte, or each seventh byte. Returns all messages that are not about damage.
  const lookAt = async (bytes: Buffer, more = {}) => {
    const lines = new Set<string>()
    const read = async (content: Buffer) => {
      writeFileSync(file, content)
      await openBackup(service.keyring, { file, ...more })
    }
    await read(bytes)
    for (let at = 0; at < bytes.length; at += LONG ? 1 : 7) {
      await read(flipped(bytes, at)).then(() => lines.add(`byte ${at} is missed`), (error: Error) => {
        if (error.name !== 'DamagedBackup') lines.add(error.message.replace(file, 'It'))
      })
    }
    return [...lines]
  }
  t.strictSame(await lookAt(plain), [])
  // No frame is bound to the recipients, so after a flip there the file can look like one for another recipient.
  t.strictSame(await lookAt(encrypted, { identity }),
    ['It cannot be decrypted with --identity: no identity matches; wrong identity or damaged file'])
})

t.test('a header of any form but its own is damage', async (t) => {
  const [, { wrapped, ...said }] = await ofNothing()
  const right = { ...said, wrapped: wrapped.toString('base64') }
  const forms = [
    null, [], 5, {}, right.wrapped, { ...right, wrapped: undefined }, { ...right, wrapped: 5 },
    { ...right, wrapped: '' }, { ...right, wrapped: 'AAAA' }, { ...right, wrapped: '//8=' }, { ...right, id: 1 },
    { ...right, migrations: 'one' }, { ...right, tables: [{}] }, { ...right, tables: [null] }, { ...right, numbered: {} }
  ]
  for (const json of ['', 'nonsense', '{"id":', ...forms.map((form) => JSON.stringify(form))]) {
    const content = Buffer.concat([sha256(json), Buffer.from(json)])
    const head = Buffer.from([1, 0, 0, 0, 0])
    head.writeUInt32BE(content.length, 1)
    const file = nextFile()
    writeFileSync(file, Buffer.concat([Buffer.from('strongroom backup 1\n'), head, content, Buffer.alloc(32)]))
    t.same(await drill(file), {
      code: 1, stdout: 'The drill found 1 fault.\n', stderr: `${file} is damaged: frame 0 fails verification\n`
    }, json)
  }
})

t.test('of what is restored as it comes, a damage leaves nothing behind', async (t) => {
  const { file } = await backUp()
  const bytes = readFileSync(file)
  const place = withKey(await emptyPlace(t))
  const database = await connectTo(place)
  async function * chunks () { for (let at = 0; at < bytes.length; at += 1000) yield bytes.subarray(at, at + 1000) }
  bytes[bytes.length - 1]! ^= 1
  const parts = decodeBackup('It', chunks(), (header) => openChain(service.keyring, header))
  await t.rejects(database.maintain((db) => restoreInto(db, service.keyring, parts)), { message: /^It is damaged: frame \d+ / })
  t.equal(await findContent(database.db), undefined)
  await database.close()
  t.equal((await command(['restore', file], place)).code, 0, 'and it can be done again')
})

t.test('without the master key a backup reveals no secret and cannot be opened', async (t) => {
  const { file } = await backUp()
  const text = readFileSync(file).toString('latin1')
  const secrets: Record<string, Buffer> = {
    'the master key': Buffer.from(MASTER_KEY.split(':')[1]!, 'base64'),
    'a document': Buffer.from(CANARY),
    'a token': Buffer.from(caller.token)
  }
  for (const key of await listStoredKeys(service.database.db, caller.organization, 0)) {
    if (key.data_key === null) continue
    secrets[`data key ${key.id}`] = dataKeyOf(service.keyring, key).export()
    secrets[`key string ${key.id}`] = Buffer.from(keyStringOf(service.keyring, key)!)
  }
  t.ok(Object.keys(secrets).length > 6)
  for (const [what, secret] of Object.entries(secrets)) {
    const base64 = [0, 1, 2].map((offset) =>
      Buffer.concat([Buffer.alloc(offset), secret]).toString('base64').slice(offset + 2, -4))
    for (const form of [secret.toString('latin1'), secret.toString('hex'), ...base64]) {
      t.notOk(text.includes(form), what)
    }
  }
  t.ok(text.includes(caller.organization), 'what is in it can be found')
  const place = await emptyPlace(t)
  const { text: OTHER } = generateMasterKey()
  const renamed = OTHER.replace(/^[^:]+/, MASTER_KEY.split(':')[0]!)
  for (const [key, line] of [
    [OTHER, /^Master key \S+ is missing: \S+ was made under it\. Set it in MASTER_KEY or MASTER_KEYS_PREVIOUS\n/],
    [renamed, /^Master key \S+ is wrong: \S+ was made under a different key with this id\n/]
  ] as const) {
    refused(t, await command(['restore', file], { ...place, MASTER_KEY: key }), line)
    refused(t, await command(['drill', file], { MASTER_KEY: key }), line, 2)
  }
  const keyIsMissing = /^The master key is needed: set MASTER_KEY or MASTER_KEY_FILE, or put the key into \S+\/master\.key\n/
  const nowhere = { DATA_DIR: join(folder, 'never-made') }
  refused(t, await command(['restore', file], nowhere), keyIsMissing)
  refused(t, await command(['drill', file], nowhere), /^There is no folder \S+\/never-made \(DATA_DIR\): set DATA_DIR, MASTER_KEY or /)
  refused(t, await command(['drill', file], { DATA_DIR: scratchDirectory(t) }), keyIsMissing, 2)
  t.equal((await command(['restore', file], { ...place, MASTER_KEY: OTHER, MASTER_KEYS_PREVIOUS: MASTER_KEY })).code, 0)
})

t.test('what is encrypted to a recipient opens with their identity alone', async (t) => {
  const [mine, others] = [await generateX25519Identity(), await generateX25519Identity()]
  const write = (name: string, text: string, mode = 0o600) => {
    writeFileSync(join(folder, name), text, { mode })
    return join(folder, name)
  }
  const [right, wrong] = [write('right', `# created by a test\n${mine}\n`), write('wrong', others)]
  const { file } = await backUp('--recipient', await identityToRecipient(mine))
  const bytes = readFileSync(file)
  t.match(bytes.subarray(0, 22).toString(), 'age-encryption.org/v1\n')
  t.notOk(bytes.includes(caller.organization))
  t.equal(statSync(file).mode & 0o777, 0o600)
  t.equal((await command(['restore', file, '--identity', right], withKey(await emptyPlace(t)))).code, 0)

  refused(t, await drill(file), /^\S+ is encrypted: pass its identity with --identity FILE\n/, 2)
  refused(t, await drill(file, '--identity', wrong), /^\S+ cannot be decrypted with --identity: no identity matches; wrong identity or damaged file\n/, 2)
  refused(t, await drill(file, '--identity', write('open', mine, 0o644)), /^--identity: \S+ has mode 0644; /, 2)
  refused(t, await drill(file, '--identity', write('empty', '# nothing\n')), /^--identity: the file contains no age identity\n/, 2)
  refused(t, await drill(file, '--identity', write('no', 'AGE-SECRET-KEY-1\n')), /^--identity: identity 1 of the file is not an age identity\n/, 2)
  refused(t, await command(['backup', nextFile(), '--recipient', 'age1x'], service.env), /^--recipient: "age1x" is not an age recipient\n/)
  refused(t, await command(['backup', nextFile(), '--recipient', mine], service.env), /^--recipient: this is a secret identity; pass its recipient, which begins with age1\n/)
  for (const at of [bytes.length - 1, bytes.length / 2, bytes.length / 3].map(Math.floor)) {
    const damaged = nextFile()
    writeFileSync(damaged, flipped(bytes, at))
    const { code, stderr } = await drill(damaged, '--identity', right)
    t.equal(code, 1)
    t.match(stderr, /^\S+ is damaged: decryption failed\n$/)
  }
})

t.test('the file is there whole or not at all, in no place of another one', async (t) => {
  const { file } = await backUp()
  t.equal(statSync(file).mode & 0o777, 0o600)
  const before = readFileSync(file)
  refused(t, await command(['backup', file], service.env), /^\S+ already exists\n/)
  t.ok(readFileSync(file).equals(before))
  refused(t, await command(['backup', join(folder, 'nowhere', 'file')], service.env), /^\S+ cannot be written \(ENOENT\)\n/)
  refused(t, await drill(join(folder, 'nowhere')), /^\S+ cannot be read \(ENOENT\)\n/, 2)
  refused(t, await drill(file, '--anchors', join(folder, 'nowhere')), /^\S+nowhere cannot be read \(ENOENT\)\n/, 2)
  for (const args of [['backup'], ['restore', 'a', 'b'], ['drill', 'a', '--none']]) {
    t.equal((await command(args, service.env)).code, 2, args.join(' '))
  }
  const own = scratchDirectory(t)
  async function * half () {
    yield before
    throw new Error('and no more')
  }
  await t.rejects(writeStreamDurably(join(own, 'half'), half(), 0o600), /and no more/)
  await writeStreamDurably(join(own, 'taken'), streamOf(before), 0o600)
  await t.rejects(writeStreamDurably(join(own, 'taken'), streamOf(Buffer.alloc(1)), 0o600), { code: 'EEXIST' })
  t.strictSame(readdirSync(own), ['taken'])
  t.ok(readFileSync(join(own, 'taken')).equals(before))
})

t.test('of several at once that make one file, the first has it whole, and the others none', async (t) => {
  const own = scratchDirectory(t)
  // A file of a process with the same id in another container.
  const theirs = join(own, 'theirs')
  writeFileSync(theirs, 'of another process')
  symlinkSync(theirs, join(own, `one.${process.pid}`))
  async function * slowly (piece: Buffer) {
    for (let i = 0; i < 20; i++) {
      yield piece
      await pause(1)
    }
  }
  const outcomes = await Promise.allSettled([1, 2, 3, 4].map((i) =>
    writeStreamDurably(join(own, 'one'), slowly(Buffer.alloc(50_000, i)), 0o600)))
  t.strictSame(outcomes.map(({ status, ...more }) => 'reason' in more ? more.reason.code : status).sort(),
    ['EEXIST', 'EEXIST', 'EEXIST', 'fulfilled'])
  const whole = outcomes.findIndex(({ status }) => status === 'fulfilled') + 1
  t.ok(readFileSync(join(own, 'one')).equals(Buffer.alloc(1_000_000, whole)), 'as one of them wrote it')
  t.equal(statSync(join(own, 'one')).mode & 0o777, 0o600)
  t.equal(readFileSync(theirs, 'utf8'), 'of another process')
  t.strictSame(readdirSync(own).sort(), ['one', `one.${process.pid}`, 'theirs'])
})

async function * streamOf (...chunks: Buffer[]) { yield * chunks }

t.test('a backup is one moment, while the service writes on', async (t) => {
  const o = caller.organization
  const traffic = { isOver: false }
  const store = async (i: number) => {
    const { status, text } = await caller.call(
      'POST', `/${o}/secrets/store`, { project: 'canary', plaintext: `N=${i}\n`.repeat(50) }
    )
    if (status !== 200) throw new Error(text)
  }
  for (let i = 0; i < (LONG ? 20 : 5); i++) await store(i)
  const versions = async () =>
    Number((await service.sql('SELECT count(*)::int AS count FROM secret_versions'))[0]!.count)
  const before = await versions()
  const writing = Promise.all([0, 1, 2, 3].map(async () => { for (let i = 0; !traffic.isOver; i++) await store(i) }))
  const made: string[] = []
  const copies = () => readdirSync(service.env.DATA_DIR ?? folder).filter((name) => name.startsWith('copy-'))
  for (const enough = before + (LONG ? 60 : 20); await versions() < enough;) made.push((await backUp()).file)
  traffic.isOver = true
  await writing
  t.strictSame(copies(), [], 'a copy of the files of an embedded database is gone')
  // The drill opens every version, and checks each row and the audit log.
  const { code, stdout, stderr } = await drill(made.at(-1)!)
  t.same([code, stderr], [0, ''], 'each version opens, and the chain ends where its counter says')
  t.match(stdout, /^Restored \d+ organizations/)
  t.match(stdout, /\nOpened \d+ versions?, \d+ documents? and \d+ keys? \(client-encrypted: \d+; queued for removal: \d+\); authentic rows: \d+\n/)
  t.match(stdout, new RegExp(`\n${o}: \\d+ events verified`))
  t.match(stdout, /\nThe drill found nothing wrong\.\n$/)
  const brought = Number(/, (\d+) versions,/.exec(stdout)![1])
  t.ok(brought >= before && brought <= await versions(), `${before} ${brought}`)
})

t.test('the database knows when it was backed up last, and a restored one that it never was', async (t) => {
  const place = withKey(await emptyPlace(t))
  const known = async ({ db }: Database) => {
    const rows = await db.execute(sql`SELECT made_at, bytes FROM last_backup`) as unknown as
      { made_at: string, bytes: string }[]
    return rows.map(({ made_at, bytes }) => `${bytes} bytes, as of ${new Date(made_at).toISOString()},`)
  }
  const { file } = await backUp()
  t.equal((await command(['restore', file], place)).code, 0)
  const { database } = await open(loadConfig(place), { creates: true })
  t.teardown(() => database.close())
  t.strictSame(await known(database), [])
  for (const out of [nextFile(), nextFile()]) {
    const { stdout, stderr } = await command(['backup', out], place)
    t.equal(stderr, '')
    const [last, ...more] = await known(database)
    t.ok(last && stdout.includes(last), `${last} in ${stdout}`)
    t.same(more, [])
  }
  await noteBackup(database.db, { made_at: '2020-01-01T00:00:00Z', bytes: 1 })
  t.notMatch(await known(database), [/2020/], 'one that took longer than the next changes nothing')

  await database.db.execute(sql`DROP TABLE last_backup`)
  const untold = await command(['backup', nextFile()], place)
  t.equal(untold.code, 0, 'a database of the release before has no such table, and is backed up all the same')
  t.match(untold.stderr, /^The backup is not recorded in the metrics, because the database could not be updated: .+\n$/)
})

t.test('a restore ends the tokens of the console with the sessions, and those of no application', async (t) => {
  const { organization } = await service.organization()
  const person = await makePerson(service, { [organization]: 'owner' })
  const [application, daily, privileged] = await Promise.all([
    issuePair(service, person, ['secret:read']), issuePair(service, person, ['secret:read'], CONSOLE_CLIENT),
    issuePair(service, person, ['member:delete'], CONSOLE_CLIENT)
  ])
  const { file, digest } = await backUp()
  for (const kind of ON_POSTGRES ? [undefined, 'embedded'] as const : ['embedded'] as const) {
    const place = withKey(await emptyPlace(t, kind))
    t.equal(digestOf(await command(['restore', file], place)), digest)
    const { database, keyring } = await open(loadConfig(place), { creates: true })
    const config = loadConfig({ RATE_LIMIT_API: '0', LOG_LEVEL: 'silent' })
    const app = await buildApp({ config, database, keyring, costs: QUICK })
    const statusIn = async (to: Pick<typeof app, 'inject'>, { access }: typeof daily) =>
      (await to.inject({ url: '/api/v1/user', headers: { authorization: `Bearer ${access}` } })).statusCode
    for (const ofConsole of [daily, privileged]) {
      t.equal(await statusIn(app, ofConsole), 401)
      t.equal(await statusIn(service.app, ofConsole), 200, 'where the backup was made, nothing ends')
    }
    t.equal(await statusIn(app, application), 200)
    await app.close()
    await database.close()
  }
})

t.test('the moment of a backup is by the clock of the database, whatever that of who makes it says', async (t) => {
  const { Date: Here } = globalThis
  globalThis.Date = class extends Here {
    constructor (...given: []) { super(...(given.length > 0 ? given : [Here.now() + 86_400_000] as unknown as [])) }
  } as DateConstructor
  const { stdout } = (await backUp().finally(() => { globalThis.Date = Here })).ended
  const [, made] = /, as of (\S+),/.exec(stdout)!
  t.ok(Date.parse(made!) < Date.now() + 60_000, `${made} is by the other clock`)
})

t.test('what was changed outside the service is found by the drill, and named', async (t) => {
  const o = caller.organization
  const [version] = await service.sql(`SELECT min(id)::int AS id FROM secret_versions WHERE organization_id = '${o}'`)
  await service.sql(`UPDATE secret_versions SET sealed = sealed || '\\x00' WHERE organization_id = '${o}' AND id = ${version!.id as number}`)
  await service.sql(`UPDATE members SET role = 'administrator' WHERE organization_id = '${o}' AND role = 'owner'`)
  await service.sql(`UPDATE organization_counters SET next_event = next_event + 1 WHERE organization_id = '${o}'`)
  const { file } = await backUp()
  const { code, stdout, stderr } = await drill(file)
  t.equal(code, 1)
  t.match(stderr, `secret_versions ${o} ${String(version!.id)}: does not open\n`)
  t.match(stderr, new RegExp(`members ${o} \\d+: changed outside the service\n`))
  t.match(stderr, new RegExp(`${o}: event \\d+ is missing`))
  t.match(stdout, /The drill found 3 faults\.\n$/)
})

t.test('a backup can be piped into a restore, and a closed pipe is reported in one line', async (t) => {
  const place = withKey(await emptyPlace(t))
  const shell = (text: string) => run('sh', ['-c', text], {
    ...service.env, ...Object.fromEntries(Object.entries(place).map(([name, value]) => [`TO_${name}`, value]))
  })
  const there = Object.keys(place).map((name) => `${name}="$TO_${name}"`).join(' ')
  const here = Object.keys(service.env).map((name) => `-u ${name}`).join(' ')
  const ended = await shell(`node ${CLI} backup - | env ${here} ${there} node ${CLI} restore -`)
  t.equal(ended.code, 0)
  t.match(ended.stdout, /^Restored [^\n]+\n$/)
  t.equal(ended.stderr.replace('Backed up', 'Restored'), ended.stdout)
  refused(t, await shell(`node ${CLI} backup - | true`), /^Standard output cannot be written \(EPIPE\)\n/, 0)
})

t.test('who cannot write to standard output says so in a line, and leaves nothing behind', async (t) => {
  const { file } = await backUp()
  const own = scratchDirectory(t)
  const shell = (text: string) => run('sh', ['-c', text], { ...service.env, TMPDIR: own, FILE: file, CLI })
  const full = /^Standard output cannot be written \(ENOSPC\)\n$/
  // A drill starts an embedded database, so only the proofs have its status.
  const statuses = { help: 1, 'backup "$TMPDIR/whole"': 1, ...LONG && { 'drill "$FILE"': 2 } }
  await Promise.all(Object.entries(statuses).map(async ([command, status]) => {
    const { code, stderr } = await shell(`node "$CLI" ${command} >/dev/full`)
    t.match(stderr, full, command)
    t.equal(code, status, command)
  }))
  t.strictSame(readdirSync(own), ['whole'])
})

t.test('a signal ends a command without leaving its scratch, and what a killed one left goes with the next', async (t) => {
  const dir = scratchDirectory(t)
  const env = { ...process.env, MASTER_KEY, DATA_DIR: dir, DATABASE_URL: '', TMPDIR: dir }
  const start = (...args: string[]) => spawn(process.execPath, args, { env, stdio: ['pipe', 'ignore', 'inherit'] })
  const end = async (child: ChildProcess, signal: NodeJS.Signals) => {
    child.kill(signal)
    return (await once(child, 'close'))[0] as number | null
  }
  const left = () => readdirSync(dir).filter((name) => !['postgres', 'copy-of-mine'].includes(name))

  // A process that has an embedded database open, and whose copies never finish.
  const place = join(dir, 'postgres')
  mkdirSync(join(place, 'cluster'), { recursive: true, mode: 0o700 })
  writeFileSync(join(place, 'cluster', 'PG_VERSION'), '17\n')
  const unlock = await lockDirectory(place)
  // A copy that an operator made, with the lock file of an ended process.
  const mine = join(dir, 'copy-of-mine', 'cluster')
  mkdirSync(mine, { recursive: true })
  writeFileSync(join(mine, '..', 'lock.1'), '')
  const asked = new EventEmitter()
  const endCopies = await serveRequests(place, async (to, whileWanted) => {
    asked.emit('copy', to)
    await once(whileWanted, 'abort')
  }, async () => {})
  const backUpInto = async (name: string) => {
    const child = start(CLI, 'backup', join(dir, name))
    const [to] = await once(asked, 'copy') as [string]
    return { child, to: to.slice(dir.length + 1).split('/')[0]! }
  }
  const killed = await backUpInto('one')
  await end(killed.child, 'SIGKILL')
  t.strictSame(left(), [killed.to])
  const stopped = await backUpInto('two')
  t.strictSame(left(), [stopped.to], 'the copy of a process that is gone has gone, too')
  // This backup waits in the queue.
  const waiting = start(CLI, 'backup', join(dir, 'three'))
  await until(() => left().length !== 1, { within: 120_000 })
  t.ok(left().includes(stopped.to), 'and that of one that lives is there')
  t.ok(existsSync(mine), 'and so is the copy that was not made for a backup')
  t.same(await Promise.all([end(stopped.child, 'SIGTERM'), end(waiting, 'SIGINT')]), [143, 130])
  t.strictSame(left(), [])
  endCopies()
  unlock()

  const drilled = start(CLI, 'drill', '-')
  await until(() => left().length > 0, { within: 120_000 })
  t.equal(await end(drilled, 'SIGINT'), 130)
  t.strictSame(left(), [])
  const module = new URL('../../src/commands/common/durable.js', import.meta.url).href
  const writes = start('--input-type=module', '-e', `
    const { writeStreamDurably } = await import(${JSON.stringify(module)})
    setInterval(() => {}, 1000)
    await writeStreamDurably(process.env.DATA_DIR + '/file', (async function * () { await new Promise(() => {}) })(), 0o600)`)
  await until(() => left().length > 0, { within: 120_000 })
  t.equal(await end(writes, 'SIGTERM'), 143)
  t.strictSame(left(), [])
})

t.test('signals are handled before a temporary path exists, and until it is removed', async (t) => {
  const file = join(scratchDirectory(t), 'file')
  const handlers = () => ['SIGINT', 'SIGTERM'].map((name) => process.listenerCount(name))
  const before = handlers()
  const more = before.map((count) => count + 1)
  const make = () => {
    t.same(handlers(), more, 'before')
    writeFileSync(file, '', { flag: 'wx' })
    return file
  }
  const { path, remove } = makeScratch(make)
  t.same([path, handlers()], [file, more], 'while it exists')
  remove()
  t.same([existsSync(file), handlers()], [false, before], 'after')
  writeFileSync(file, 'of another process')
  t.throws(() => makeScratch(make), { code: 'EEXIST' })
  t.same([readFileSync(file, 'utf8'), handlers()], ['of another process', before], 'what was not made stays')
})

t.test('a signal removes a temporary directory that a thread still fills', async (t) => {
  const dir = scratchDirectory(t)
  const module = new URL('../../src/commands/common/scratch.js', import.meta.url).href
  // New files keep the removal of the directory from succeeding.
  const thread = `
    const { writeFileSync } = require('node:fs')
    for (let i = 0; ; i++) {
      writeFileSync(process.env.OWN + '/' + i, '')
      if (i > 300) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1)
    }`
  const child = spawn(process.execPath, ['--input-type=module', '-e', `
    import { mkdirSync } from 'node:fs'
    import { Worker } from 'node:worker_threads'
    import { makeScratch } from ${JSON.stringify(module)}
    const { OWN } = process.env
    makeScratch(() => {
      mkdirSync(OWN)
      return OWN
    })
    new Worker(${JSON.stringify(thread)}, { eval: true, execArgv: [] }).on('error', () => {})
    setInterval(() => {}, 1000)`], { env: { ...process.env, OWN: join(dir, 'own') }, stdio: 'ignore' })
  await until(() => child.exitCode !== null || existsSync(join(dir, 'own', '310')), { within: 120_000 })
  child.kill('SIGTERM')
  t.equal((await once(child, 'close'))[0], 143)
  t.strictSame(readdirSync(dir), [])
})

t.test('a backup of a newer or an unreleased build, or with other rows than it says, is refused in one line', async (t) => {
  const place = withKey(await emptyPlace(t))
  const restore = async (migrations: string[]) => {
    const file = nextFile()
    await writeStreamDurably(file, encodeBackup(...await ofNothing({ migrations })), 0o600)
    return command(['restore', file], place)
  }
  refused(t, await restore([...await listMigrations(service.database.db), 'of a newer build']),
    /^The backup was made by a newer or different build: restore it with that build\n/)
  refused(t, await restore(['of an unreleased build']),
    /^This backup was made by an unreleased build of Strongroom and cannot be restored\.\n/)

  const counts = [{ table: 'users', rows: 1, digest: '00' }]
  const short = nextFile()
  await writeStreamDurably(short, encodeBackup(...await ofNothing({}, counts)), 0o600)
  refused(t, await command(['restore', short], place), /^The restored rows differ from the backup\n/)
})
