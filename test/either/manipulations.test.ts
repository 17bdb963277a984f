import t from 'tap'
import { sql } from 'drizzle-orm'
import { openBlob, sealBlob } from '../../src/crypto/blob.ts'
import { codeOf, transaction } from '../../src/db/database.ts'
import { makeLevel, startApp, type Answer, type Caller } from '../helpers/app.ts'
import { clientKey, type ClientKey } from '../helpers/client.ts'
import { LONG } from '../helpers/long.ts'
import { beside } from '../helpers/statements.ts'

// Somebody who can write to the database, with DDL rights, against a service that has the master key. Each manipulation
// is made, has to be refused by everything that needs the row, and is taken back before the next one.

t.setTimeout(180_000)

const test = await startApp(t)
const [owner, other] = [await test.organization(), await test.organization()]
const TABLES = ['organizations', 'projects', 'encryption_keys', 'secrets', 'secret_versions'] as const
type Table = (typeof TABLES)[number]
type Read = () => Promise<Answer>

interface Document {
  name: string
  caller: Caller
  project: string
  path: string
  body: object
  id: string
  managed: 'server' | 'client'
}
interface Version { name: string, caller: Caller, id: number, project: string, client: ClientKey | undefined }

const call = (caller: Caller, method: string, path: string, body?: unknown) =>
  caller.call(method, `/${caller.organization}${path}`, body)
async function done (answer: Promise<Answer>): Promise<Answer> {
  const { status, text } = await answer
  if (status >= 300) throw new Error(text)
  return answer
}
const run = (statements: string[]) => beside(() => transaction(test.database.db, async (db) => {
  for (const one of statements) await db.execute(sql.raw(one))
}))

/** Keeps a copy of all tables, to take rows or everything back from. */
async function keep (name: string) {
  await run([`CREATE SCHEMA ${name}`, ...TABLES.map((table) =>
    `CREATE TABLE ${name}.${table} AS SELECT * FROM ${table}`)])
}

const takeBack = (tables: readonly Table[]) => run([
  "SET LOCAL session_replication_role = 'replica'",
  ...tables.flatMap((table) =>
    [`DELETE FROM ${table}`, `INSERT INTO ${table} OVERRIDING SYSTEM VALUE SELECT * FROM kept.${table}`])
])

// Projects of one organization and one of another, with documents on several levels, each written twice before its
// project's key was rotated and one of them once more afterwards.
const first = await clientKey('correct horse battery staple')
const second = await clientKey('staple battery horse correct')
const documents: Document[] = []
async function project (
  slug: string, caller: Caller, levels: ('project' | 'target' | 'environment' | 'test')[], client?: ClientKey
) {
  const { target, environment } = await makeLevel(caller, { slug, ...client?.registration })
  if (levels.includes('test')) await call(caller, 'POST', `/${slug}/${target}/environments`, { name: 'Test' })
  for (const level of levels) {
    const body = {
      project: slug,
      ...(level !== 'project' && { target }),
      ...(level === 'environment' && { environment }),
      ...(level === 'test' && { environment: 'test' })
    }
    const path = `/${Object.values(body).join('/')}/secrets`
    const { secret_id } = (await done(write(caller, body, 'A=1', client))).body.data
    documents.push({
      name: `${slug} ${level}`,
      caller,
      project: slug,
      path,
      body,
      id: secret_id,
      managed: client === undefined ? 'server' : 'client'
    })
  }
}
const write = (caller: Caller, body: object, plaintext: string, client?: ClientKey) =>
  call(caller, 'POST', '/secrets/store', {
    ...body,
    ...(client === undefined
      ? { plaintext }
      : { content: sealBlob(client.dataKey, plaintext), key_proof: client.proof })
  })

await project('rotated', owner, ['project', 'target', 'environment', 'test'])
await project('moved', owner, ['environment'])
await project('plain', owner, ['environment'])
await project('foreign', other, ['environment'])
await project('client', owner, ['project', 'environment'], first)
await project('client-plain', owner, ['environment'], first)
await keep('first')
for (const { caller, body, managed } of documents) {
  await done(write(caller, body, 'A=2', managed === 'client' ? first : undefined))
}
await keep('earlier')
await done(call(owner, 'POST', '/rotated/encryption-key/rotate'))
await done(call(owner, 'POST', '/moved/encryption-key/rotate', { history_policy: 're_encrypt' }))
await rotateClient()
await done(write(owner, documents[1]!.body, 'A=3'))
while ((await call(owner, 'GET', '/moved/encryption-key/history')).body.re_encryption.state !== 'done') {
  await new Promise((resolve) => { setTimeout(resolve, 10) })
}
await keep('kept')

async function rotateClient () {
  const own = documents.filter((document) => document.project === 'client')
  const levels = (await call(owner, 'GET', own.at(-1)!.path)).body.data.attributes.levels
  const secrets = Object.values<any>(levels).map(({ id, content }) =>
    ({ id, content: sealBlob(second.dataKey, openBlob(first.dataKey, content)!) }))
  const { storage_mode: _, ...triple } = second.registration
  await done(call(owner, 'POST', '/client/secrets/rotate-client-keys', { secrets, ...triple }))
  // Of the history, one version is moved onto the new key, and the others wait.
  const { data } = (await call(owner, 'POST', '/client/secrets/re-encrypt-history/pending', { limit: 1 })).body
  const versions = data.map(({ id, content }: any) =>
    ({ id, content: sealBlob(second.dataKey, openBlob(first.dataKey, content)!) }))
  await done(call(owner, 'POST', '/client/secrets/re-encrypt-history', { versions, key_proof: second.proof }))
}

/** What needs a document: every way to read it. */
const readsOf = ({ caller, path, managed }: Document): Read[] =>
  ['', ...managed === 'server' ? ['?decrypt=true', '?decrypt=true&merge=true'] : []].map((query) =>
    () => call(caller, 'GET', path + query))

/** What needs a version's content. */
const versionReads = ({ caller, id, client }: Version): Read[] => [
  () => call(caller, 'GET', `/secrets/versions/${id}`),
  ...client === undefined ? [() => call(caller, 'POST', `/secrets/versions/${id}/restore`)] : []
]

const allOf = (project: string): Read[] => documents.filter((document) => document.project === project).flatMap(readsOf)
const total = { made: 0, byDatabase: 0 }
const accepted: string[] = []

async function violations (): Promise<number> {
  return (await test.sql(
    "SELECT count(*)::int AS count FROM audit_events WHERE action = 'integrity.violation'"
  ))[0]!.count as number
}

/**
 * Makes a manipulation, expects that the database refuses it or that everything which needs the rows does, and takes it
 * back.
 */
async function manipulate (name: string, tables: readonly Table[], statements: string[], reads: Read[]) {
  total.made++
  try {
    await run(statements)
  } catch (error) {
    if (!codeOf(error)?.startsWith('23')) throw error
    total.byDatabase++
    return
  }
  const before = await violations()
  for (const read of reads) {
    const { status, body, text } = await read()
    const refused = status === 500 &&
      JSON.stringify(body) === '{"error":"integrity_error","message":"A stored record was changed outside the service and was rejected. Contact the operator."}'
    if (!refused) accepted.push(`${name}: ${status} ${text.slice(0, 200)}`)
  }
  const events = await violations() - before
  if (events !== reads.length) accepted.push(`${name}: ${events} events for ${reads.length} reads`)
  await takeBack(tables)
}

/** The manipulations of a block: all of them refused, and afterwards everything is as it was. */
async function block (name: string, work: () => Promise<void>) {
  await t.test(`CR-01: ${name}`, async (t) => {
    const { made } = total
    accepted.length = 0
    await work()
    t.ok(total.made > made, `${total.made - made} manipulations`)
    t.same(accepted, [])
    for (const document of documents) {
      for (const read of readsOf(document)) {
        const { status, text } = await read()
        t.equal(status, 200, `${document.name}: ${text}`)
      }
    }
  })
}

const pairs = <T>(list: readonly T[]) =>
  list.flatMap((one) => list.filter((two) => two !== one).map((two) => [one, two] as const))
const unordered = <T>(list: readonly T[]) =>
  list.flatMap((one, index) => list.slice(index + 1).map((two) => [one, two] as const))
const copied = (columns: string[], from: string) => columns.map((column) => `${column} = ${from}.${column}`).join(', ')
const DOCUMENT = [
  ['sealed'], ['sealed', 'key_version'], ['sealed', 'revision'],
  ['sealed', 'revision', 'key_version', 'size_bytes', 'version']
]

const versions: Version[] = []
for (const document of documents) {
  const rows = await test.sql(
    `SELECT id, key_version, action FROM secret_versions WHERE history_id = '${document.id}' ORDER BY id`
  )
  for (const { id, key_version, action } of rows) {
    versions.push({
      name: `${document.name} ${id} (${action}, key ${key_version})`,
      caller: document.caller,
      id: Number(id),
      project: document.project,
      client: document.managed === 'client' ? second : undefined
    })
  }
}
const at = ({ caller, id }: Version, table = 'v') =>
  `${table}.organization_id = '${caller.organization}' AND ${table}.id = ${id}`
const versionsOf = (name: string) => versions.filter((version) => version.name.startsWith(name))
const [oldest, , rotation, newest] = versionsOf('rotated target') as [Version, Version, Version, Version]
const sample = [
  oldest, rotation, newest, versionsOf('rotated environment')[0]!, versionsOf('plain')[0]!, versionsOf('foreign')[0]!,
  versionsOf('client environment')[0]!
]

await block('documents copied onto others, between levels, projects, organizations and holders of the key', async () => {
  for (const [i, [to, from]] of pairs(documents).entries()) {
    for (const columns of LONG ? DOCUMENT : [DOCUMENT[i % DOCUMENT.length]!]) {
      const statement =
        `UPDATE secrets s SET ${copied(columns, 'o')} FROM secrets o WHERE s.id = '${to.id}' AND o.id = '${from.id}'`
      await manipulate(`${columns} of ${from.name} on ${to.name}`, ['secrets'], [statement], readsOf(to).slice(0, 2))
    }
  }
})

await block('documents swapped, whole or moved to another level', async () => {
  for (const [a, b] of unordered(documents)) {
    for (const columns of [['sealed'], DOCUMENT[3]!, ['level_id'], ['id']]) {
      // Under a level of another organization a row belongs to no level any more: it is removed, which nothing can
      // tell.
      if (columns.includes('level_id') && a.caller !== b.caller) continue
      const statement =
        `UPDATE secrets s SET ${copied(columns, 'o')} FROM secrets o WHERE (s.id = '${a.id}' AND o.id = '${b.id}') OR (s.id = '${b.id}' AND o.id = '${a.id}')`
      await manipulate(
        `${columns} of ${a.name} and ${b.name}`, ['secrets'], [statement], [readsOf(a)[0]!, readsOf(b)[0]!]
      )
    }
  }
  // Over a free id in between, which no constraint can refuse.
  const [a, b] = [documents[2]!, documents[3]!]
  const rename = (from: string, to: string) => `UPDATE secrets SET level_id = '${to}' WHERE level_id = '${from}'`
  const [{ x, y }] = await test.sql(
    `SELECT (SELECT level_id FROM secrets WHERE id = '${a.id}') AS x, (SELECT level_id FROM secrets WHERE id = '${b.id}') AS y`
  ) as [{ x: string, y: string }]
  await manipulate(
    'levels exchanged', ['secrets'], [rename(x, 'z'), rename(y, x), rename('z', y)], [readsOf(a)[0]!, readsOf(b)[0]!]
  )
})

await block('versions copied onto others, swapped, renumbered and moved into other histories', async () => {
  for (const [to, from] of pairs(sample)) {
    for (const columns of [
      ['sealed'], ['sealed', 'key_version'], ['sealed', 'revision', 'key_version', 'size_bytes', 'created_at']
    ]) {
      const statement =
        `UPDATE secret_versions v SET ${copied(columns, 'o')} FROM secret_versions o WHERE ${at(to)} AND ${at(from, 'o')}`
      await manipulate(`${columns} of ${from.name} on ${to.name}`, ['secret_versions'], [statement], versionReads(to))
    }
    if (to.caller !== from.caller || to.name.split(' ')[1] === from.name.split(' ')[1]) continue
    const moved =
      `UPDATE secret_versions v SET history_id = o.history_id FROM secret_versions o WHERE ${at(to)} AND ${at(from, 'o')}`
    await manipulate(
      `${to.name} in the history of ${from.name}`, ['secret_versions'], [moved], versionReads(to).slice(0, 1)
    )
  }
  for (const [a, b] of unordered(sample)) {
    const columns = ['sealed', 'revision', 'key_version', 'size_bytes', 'action']
    const statement =
      `UPDATE secret_versions v SET ${copied(columns, 'o')} FROM secret_versions o WHERE (${at(a)} AND ${at(b, 'o')}) OR (${at(b)} AND ${at(a, 'o')})`
    await manipulate(
      `${a.name} and ${b.name} swapped`, ['secret_versions'], [statement], [...versionReads(a), ...versionReads(b)]
    )
  }
  for (const version of sample) {
    const renumbered = { ...version, id: 9000 + version.id }
    await manipulate(
      `${version.name} under another number`, ['secret_versions'],
      [`UPDATE secret_versions v SET id = ${renumbered.id} WHERE ${at(version)}`], versionReads(renumbered)
    )
    for (const change of ['revision = revision + 1', 'revision = 0', 'key_version = 3 - key_version']) {
      if (!/rotated|client env/.test(version.name) && change.startsWith('key')) continue
      await manipulate(
        `${version.name}: ${change}`, ['secret_versions'],
        [`UPDATE secret_versions v SET ${change} WHERE ${at(version)}`], versionReads(version)
      )
    }
  }
})

await block('documents and versions exchanged for each other', async () => {
  for (const document of documents) {
    for (const version of versionsOf(document.name)) {
      for (const columns of DOCUMENT.slice(0, 3)) {
        const asDocument =
          `UPDATE secrets s SET ${copied(columns, 'v')} FROM secret_versions v WHERE s.id = '${document.id}' AND ${at(version)}`
        await manipulate(
          `${columns} of version ${version.name} as the document`, ['secrets'], [asDocument],
          readsOf(document).slice(0, 1)
        )
      }
      const asVersion =
        `UPDATE secret_versions v SET ${copied(DOCUMENT[0]!, 's')}, ${copied(['revision', 'key_version'], 's')} FROM secrets s WHERE s.id = '${document.id}' AND ${at(version)}`
      await manipulate(
        `the document as version ${version.name}`, ['secret_versions'], [asVersion], versionReads(version)
      )
    }
  }
})

await block('documents put back to before a later write and before a rotation', async () => {
  const sets = [
    ['sealed'], ['sealed', 'key_version'], ['sealed', 'revision'], ['sealed', 'revision', 'key_version'],
    ['sealed', 'revision', 'key_version', 'size_bytes', 'version', 'updated_at']
  ]
  for (const document of documents) {
    for (const state of ['first', ...['rotated', 'moved', 'client'].includes(document.project) ? ['earlier'] : []]) {
      for (const columns of sets) {
        const statement =
          `UPDATE secrets s SET ${copied(columns, 'o')} FROM ${state}.secrets o WHERE s.id = o.id AND s.id = '${document.id}'`
        await manipulate(`${columns} of ${document.name} as ${state}`, ['secrets'], [statement], readsOf(document))
      }
    }
  }
})

const disable = 'ALTER TABLE encryption_keys DISABLE TRIGGER keep_rotated_key'
const enable = 'ALTER TABLE encryption_keys ENABLE TRIGGER keep_rotated_key'
const idOf = (slug: string) => `(SELECT id FROM projects WHERE slug = '${slug}')`
const keyBack = (slug: string) => [
  disable,
  `UPDATE encryption_keys SET is_active = false WHERE project_id = ${idOf(slug)} AND version = 2`,
  `UPDATE encryption_keys SET is_active = true, rotated_at = NULL WHERE project_id = ${idOf(slug)} AND version = 1`,
  enable
]
const versionBack = (slug: string) => `UPDATE projects SET key_version = 1 WHERE slug = '${slug}'`
const documentsBack = (slug: string) =>
  `UPDATE secrets s SET ${copied(['sealed', 'revision', 'key_version', 'size_bytes', 'version'], 'o')} FROM earlier.secrets o WHERE s.id = o.id AND s.project_id = ${idOf(slug)}`

await block('a rotation undone: the key version, the active key, the documents, and all of them', async () => {
  const tables = ['projects', 'encryption_keys', 'secrets', 'secret_versions'] as const
  for (const slug of ['rotated', 'moved', 'client']) {
    const { path, body } = documents.find((document) => document.project === slug)!
    const all = allOf(slug)
    // A client that never heard of the rotation still has the proof of the old key.
    const store: Read = () => write(owner, body, 'A=4', slug === 'client' ? first : undefined)
    const storeAtNew: Read = () =>
      write(owner, { project: slug, target: 'backend' }, 'A=4', slug === 'client' ? first : undefined)
    const atNew = slug === 'rotated' ? [] : [storeAtNew]
    const decrypt: Read[] = slug === 'client' ? [] : [() => call(owner, 'GET', `${path}?decrypt=true`)]
    const key: Read = () => call(owner, 'GET', `/${slug}/encryption-key`)
    const undone = [...keyBack(slug), versionBack(slug)]
    await manipulate(
      `${slug}: the key version set back`, tables, [versionBack(slug)],
      [...all, key, ...slug === 'client' ? [] : [store, ...atNew]]
    )
    await manipulate(
      `${slug}: the key version set ahead`, tables, [`UPDATE projects SET key_version = 3 WHERE slug = '${slug}'`],
      [...all, key, ...slug === 'client' ? [] : [store, ...atNew]]
    )
    await manipulate(`${slug}: the old key active`, tables, keyBack(slug), [...decrypt, key, store, ...atNew])
    await manipulate(`${slug}: the old key active under its version`, tables, undone, [...all, key, store, ...atNew])
    await manipulate(`${slug}: the documents put back`, tables, [documentsBack(slug)], all)
    await manipulate(
      `${slug}: the documents and the key put back`, tables, [...undone, documentsBack(slug)],
      [...all, key, store, ...atNew]
    )
    await manipulate(`${slug}: the documents put back, the new key gone`, tables, [
      disable, `DELETE FROM encryption_keys WHERE project_id = ${idOf(slug)} AND version = 2`, ...keyBack(slug)
        .slice(2), versionBack(slug), documentsBack(slug)
    ], [...all, store])
  }
})

await block('versions put back to before their re-encryption, under the new key version', async () => {
  for (const version of [...versionsOf('moved'), ...versionsOf('client ')]) {
    const [old] = await test.sql(
      `SELECT o.key_version < v.key_version AS moved FROM secret_versions v JOIN earlier.secret_versions o USING (organization_id, id) WHERE ${at(version)}`
    )
    if (old?.moved !== true) continue
    const statement =
      `UPDATE secret_versions v SET sealed = o.sealed, size_bytes = o.size_bytes FROM earlier.secret_versions o WHERE ${at(version)} AND ${at(version, 'o')}`
    await manipulate(`${version.name} as before`, ['secret_versions'], [statement], versionReads(version))
  }
})

await block('keys exchanged between versions, projects, organizations and columns', async () => {
  const keys = await test.sql(
    'SELECT k.id, k.version, k.managed, k.is_active, p.slug FROM encryption_keys k JOIN projects p ON p.id = k.project_id ORDER BY k.id'
  ) as unknown as
    { id: number, version: number, managed: string, is_active: boolean, slug: string }[]
  const prove = (document: Document, key: ClientKey): Read => () => write(document.caller, document.body, 'A=4', key)
  for (const key of keys) {
    const document = documents.find((one) => one.project === key.slug)!
    const { caller } = document
    const retrieve: Read = () => call(caller, 'GET', `/${key.slug}/encryption-key`)
    const history: Read = () => call(caller, 'GET', `/${key.slug}/encryption-key/history`)
    const ofKey = versions.filter(({ project, name }) => project === key.slug && name.endsWith(`key ${key.version})`))
    const decrypt: Read[] = key.is_active
      ? [readsOf(document)[1]!, () => write(caller, document.body, 'A=4')]
      : ofKey.slice(0, 2).flatMap((version) => versionReads(version).slice(1))
    const client = key.slug === 'client' ? second : first
    const needs: Record<string, Read[]> = key.managed === 'server'
      ? { data_key: decrypt, ...key.is_active && { key_string: [retrieve], salt: [retrieve] }, key_check: [] }
      : {
          salt: key.is_active ? [retrieve, history] : [history],
          key_check: key.is_active ? [prove(document, client)] : [history],
          data_key: []
        }
    for (const [column, reads] of Object.entries(needs)) {
      // Nothing is under that key any more, so nothing reads its data key.
      if (column === 'data_key' && key.managed === 'server' && reads.length === 0) continue
      for (const from of keys.filter((one) =>
        one !== key && (reads.length > 0 ? one.managed === key.managed || column === 'salt' : true))) {
        const value = reads.length > 0 ? `o.${column}` : 'o.salt'
        const statement =
          `UPDATE encryption_keys k SET ${column} = ${value} FROM encryption_keys o WHERE k.id = ${key.id} AND o.id = ${from.id}`
        await manipulate(
          `${column} of key ${from.version} of ${from.slug} in key ${key.version} of ${key.slug}`, ['encryption_keys'],
          [disable, statement, enable], reads
        )
        if (!key.is_active) {
          await manipulate(`${column} of a frozen key of ${key.slug}`, ['encryption_keys'], [statement], reads)
        }
      }
    }
  }
})

await block('storage keys of other organizations', async () => {
  for (const [to, from] of pairs([owner, other])) {
    const own = documents.filter(({ caller }) => caller === to)
    const statement =
      `UPDATE organizations a SET storage_key = b.storage_key FROM organizations b WHERE a.id = '${to.organization}' AND b.id = '${from.organization}'`
    await manipulate(
      'a storage key', ['organizations'], [statement],
      [...own.flatMap(readsOf), () => write(to, own[0]!.body, 'A=4'), ...versionsOf(own[0]!.name).flatMap(versionReads)]
    )
  }
})

await block('sealed content whose tag is cut to 0 to 15 bytes (CR-03)', async () => {
  const document = documents[0]!
  for (let tag = 0; tag < 16; tag++) {
    const cut = (table: string, where: string) =>
      `UPDATE ${table} SET sealed = substring(sealed FOR length(sealed) - ${16 - tag}) WHERE ${where}`
    await manipulate(
      `a document with a tag of ${tag}`, ['secrets'], [cut('secrets', `id = '${document.id}'`)], readsOf(document)
    )
    await manipulate(
      `a version with a tag of ${tag}`, ['secret_versions'], [cut('secret_versions v', at(oldest))],
      versionReads(oldest)
    )
  }
})

t.test('CR-01: at least 200 manipulations were refused, by the service and not by the database alone', async (t) => {
  t.ok(
    total.made - total.byDatabase >= 200,
    `${total.made} manipulations, ${total.byDatabase} of them refused by the database itself`
  )
  t.same(
    test.logs.filter((line) => line.includes('"error_code":"internal_error"')), [], 'nothing failed in another way'
  )
})

t.test('CR-26: no update of a project, target or environment assigns anything of a key', async (t) => {
  const state = () =>
    test.sql(
      'SELECT k::text, p.key_version, p.encryption_type FROM encryption_keys k JOIN projects p ON p.id = k.project_id ORDER BY k.id'
    )
  const before = await state()
  const { storage_mode: _, ...triple } = first.registration
  const assigned: Record<string, unknown> = {
    ...triple,
    salt: triple.key_check_salt,
    iterations: 1000,
    managed: 'client',
    encryption_type: 'client',
    key_version: 1,
    version: 1,
    is_active: true,
    rotated_at: null,
    key_string: 'x',
    data_key: 'x',
    key: 'x',
    key_hint: 'x',
    encryption_key: 'x'.repeat(40),
    key_proof: first.proof,
    encryption_keys: [{ version: 1 }]
  }
  for (const slug of ['rotated', 'client']) {
    for (const path of [`/${slug}`, `/${slug}/backend`, `/${slug}/backend/live`]) {
      for (const method of ['PUT', 'PATCH']) {
        for (const body of [
          assigned, ...Object.entries(assigned).map(([member, value]) => ({ name: 'Renamed', [member]: value }))
        ]) {
          t.match(
            await call(owner, method, path, body), { status: 422, body: { error: 'validation_failed' } },
            `${method} ${path} ${Object.keys(body)}`
          )
        }
      }
    }
  }
  t.strictSame(await state(), before)
})

t.test('CR-21: after rotations a dump of all tables holds none of the proofs, salts and key strings, of old keys or new ones', async (t) => {
  const { key } = (await call(owner, 'GET', '/rotated/encryption-key')).body.data.attributes
  const tables = await test.sql(
    "SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema IN ('public', 'first', 'earlier', 'kept')"
  )
  const rows = []
  for (const { table_schema, table_name } of tables) {
    rows.push(...await test.sql(`SELECT t::text AS row FROM ${table_schema}.${table_name} t`))
  }
  const dump = rows.map(({ row }) => row).join('\n')
  t.match(dump, 'client-plain', 'it is a dump')
  const secret = {
    'old proof': first.proof,
    'new proof': second.proof,
    'old salt': first.salt.toString('base64'),
    'new salt': second.salt.toString('base64'),
    key: Buffer.from(key).toString('base64')
  }
  for (const [name, base64] of Object.entries(secret)) {
    const bytes = Buffer.from(base64, 'base64')
    const forms = [
      base64, base64.replace(/=+$/, ''), bytes.toString('hex'), bytes.toString('latin1'),
      Buffer.from(base64).toString('hex')
    ]
    t.notOk(forms.some((form) => dump.includes(form)), name)
  }
})
