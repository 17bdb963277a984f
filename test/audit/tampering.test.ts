// runs: one database; 25 s
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import t, { type Test } from 'tap'
import { ulid } from 'ulidx'
import { getTableColumns, sql } from 'drizzle-orm'
import { openBlob, sealBlob } from '../../src/crypto/blob.ts'
import { formToken, hashToken, mintApiToken, mintCredential, mintSecret } from '../../src/crypto/bearer.ts'
import { hashPassword } from '../../src/crypto/passwords.ts'
import { hashRecoveryCode } from '../../src/crypto/second-factor.ts'
import { AUTHENTICATED, type AuthenticatedTable } from '../../src/db/rows/authenticated.ts'
import { authorityOf, codeOf, lookupHash } from '../../src/db/database.ts'
import { transaction } from '../../src/changes/transaction.ts'
import { eventRow } from '../../src/db/events.ts'
import * as tables from '../../src/db/tables.ts'
import {
  createClient, createCode, createGrant, createPair, createRequest, revokeGrant, setClientDisabled
} from '../../src/repositories/people/oauth.ts'
import { createInvitation } from '../../src/repositories/people/invitations.ts'
import { createPersonalEvent } from '../../src/repositories/people/personal-events.ts'
import { listTokensOfPerson } from '../../src/repositories/people/tokens.ts'
import { createSignInStep } from '../../src/repositories/people/second-factors.ts'
import { createSession } from '../../src/repositories/people/sessions.ts'
import { recordLate } from '../../src/changes/late.ts'
import { operatorOf } from '../../src/repositories/audit/audit.ts'
import { createPasswordReset } from '../../src/repositories/people/password-resets.ts'
import { createPasswordLink, endEverything, findUser, setDisabled } from '../../src/repositories/people/users.ts'
import { makeLevel, ON_CITUS, startIsolatedApp, type Answer, type Caller, type TestApp } from '../helpers/app.ts'
import { clientKey, type ClientKey } from '../helpers/client.ts'
import { byTurns, LONG, sample } from '../helpers/long.ts'
import { WORKLOAD } from '../helpers/operations.ts'
import { authorizationUrl, CALLBACK, giveSecondFactor, issuePair, makePerson, pkce } from '../helpers/people.ts'
import { beside } from '../helpers/statements.ts'
import { until } from '../helpers/until.ts'

// The attacker can write to the database and has DDL rights. The service has the master key. Each test changes rows,
// expects an error from every request that needs these rows, and then restores the rows.
//
// The first part tampers with documents, versions and keys. The second part tampers with rows that decide about access.
// The second part derives its changes from the declaration of the authenticated columns, so it also covers new columns.
// The service must treat a changed row as missing, or refuse access to a changed level. It must also record the
// violation.

t.setTimeout(400_000)

const REFUSED =
  '500 {"error":"integrity_error","message":"A stored record was changed outside the service and was rejected. Contact the operator."}'

/** Writes directly to the database of a service, and counts the changes. */
function attacker<Table extends string> (test: TestApp, tables: readonly Table[]) {
  const total = { made: 0, byDatabase: 0 }
  const run = (statements: string[]) => beside(() => transaction(test.database.db, async (db) => {
    for (const one of statements) await db.execute(sql.raw(one))
  }))
  return {
    total,
    run,
    /** Copies all tables into a schema. Later statements restore rows from this copy. */
    keep: (schema: string) => run([
      `CREATE SCHEMA ${schema}`, ...tables.map((table) => `CREATE TABLE ${schema}.${table} AS SELECT * FROM ${table}`)
    ]),
    /** Restores tables from the copy in the schema `kept`. */
    takeBack: (names: readonly Table[] = tables) => run([
      "SET LOCAL session_replication_role = 'replica'",
      // One round trip for all tables.
      names.map((table) =>
        `DELETE FROM ${table}; INSERT INTO ${table} OVERRIDING SYSTEM VALUE SELECT * FROM kept.${table}`).join('; ')
    ]),
    /** Executes a manipulation. Returns false if the database refuses it with a code that starts with `code`. */
    async make (statements: string[], code: string): Promise<boolean> {
      total.made++
      try {
        await run(statements)
        return true
      } catch (error) {
        // Citus copies rows of an INSERT … SELECT with COPY, whose errors have the code XX000.
        const isViolation = ON_CITUS && codeOf(error) === 'XX000' && / violates /.test((error as Error).message)
        if (!codeOf(error)?.startsWith(code) && !isViolation) throw error
        total.byDatabase++
        return false
      }
    },
    violations: async () => (await test.sql(
      "SELECT count(*)::int AS count FROM audit_events WHERE action = 'integrity.violation'"
    ))[0]!.count as number,
    /** Asserts at least 200 manipulations in `npm run test:proofs`. */
    atLeast200 (t: Test) {
      t.ok(
        total.made - total.byDatabase >= (LONG ? 200 : 100),
        `${total.made} manipulations, ${total.byDatabase} of them refused by the database itself`
      )
      t.same(
        test.logs.filter((line) => line.includes('"error_code":"internal_error"')), [], 'nothing failed in another way'
      )
    }
  }
}

// Documents, versions and keys

// This file has its own database, because it forges rows, and verifies all tables.
const service = await startIsolatedApp(t)
const [owner, stranger] = [await service.organization(), await service.organization()]
const TABLES = ['organizations', 'projects', 'encryption_keys', 'secrets', 'secret_versions'] as const
type Table = (typeof TABLES)[number]
const attack = attacker(service, TABLES)
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
// The test uses projects of two organizations, with documents on several levels. Each document is written twice before
// the key rotation of its project. One document is written again after the rotation.
const first = await clientKey('correct horse battery staple')
const second = await clientKey('staple battery horse correct')
const documents: Document[] = []
async function makeProject (
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

await makeProject('rotated', owner, ['project', 'target', 'environment', 'test'])
await makeProject('moved', owner, ['environment'])
await makeProject('plain', owner, ['environment'])
await makeProject('foreign', stranger, ['environment'])
await makeProject('client', owner, ['project', 'environment'], first)
await makeProject('client-plain', owner, ['environment'], first)
await attack.keep('first')
for (const { caller, body, managed } of documents) {
  await done(write(caller, body, 'A=2', managed === 'client' ? first : undefined))
}
await attack.keep('earlier')
await done(call(owner, 'POST', '/rotated/encryption-key/rotate'))
await done(call(owner, 'POST', '/moved/encryption-key/rotate', { history_policy: 're_encrypt' }))
await rotateClient()
await done(write(owner, documents[1]!.body, 'A=3'))
const stateOfMoved = async () => (await call(owner, 'GET', '/moved/encryption-key/history')).body.re_encryption.state
await until(async () => await stateOfMoved() === 'done', { within: 120_000 })
await attack.keep('kept')

async function rotateClient () {
  const own = documents.filter((document) => document.project === 'client')
  const levels = (await call(owner, 'GET', own.at(-1)!.path)).body.data.attributes.levels
  const secrets = Object.values<any>(levels).map(({ id, content }) =>
    ({ id, content: sealBlob(second.dataKey, openBlob(first.dataKey, content)!) }))
  const { storage_mode: _, ...triple } = second.registration
  await done(call(owner, 'POST', '/client/secrets/rotate-client-keys', { secrets, ...triple }))
  // Re-encrypts one version of the history with the new key. The other versions stay pending.
  const { data } = (await call(owner, 'POST', '/client/secrets/re-encrypt-history/pending', { limit: 1 })).body
  const versions = data.map(({ id, content }: any) =>
    ({ id, content: sealBlob(second.dataKey, openBlob(first.dataKey, content)!) }))
  await done(call(owner, 'POST', '/client/secrets/re-encrypt-history', { versions, key_proof: second.proof }))
}

/** All requests that read a document. */
const readsOf = ({ caller, path, managed }: Document): Read[] =>
  ['', ...managed === 'server' ? ['?decrypt=true', '?decrypt=true&merge=true'] : []].map((query) =>
    () => call(caller, 'GET', path + query))

/** All requests that read the content of a version. */
const versionReads = ({ caller, id, client }: Version): Read[] => [
  () => call(caller, 'GET', `/secrets/versions/${id}`),
  ...client === undefined ? [() => call(caller, 'POST', `/secrets/versions/${id}/restore`)] : []
]

const allOf = (project: string): Read[] => documents.filter((document) => document.project === project).flatMap(readsOf)
const accepted: string[] = []

/**
 * Executes a manipulation, expects that the database refuses it or that every read of the rows fails, and then restores
 * the rows.
 */
async function tamper (name: string, tables: readonly Table[], statements: string[], reads: Read[]) {
  if (!await attack.make(statements, '23')) return
  const before = await attack.violations()
  for (const read of reads) {
    const { status, body, text } = await read()
    if (`${status} ${JSON.stringify(body)}` !== REFUSED) accepted.push(`${name}: ${status} ${text.slice(0, 200)}`)
  }
  const events = await attack.violations() - before
  if (events !== reads.length) accepted.push(`${name}: ${events} events for ${reads.length} reads`)
  await attack.takeBack(tables)
}

/** Runs a block of manipulations. All must be refused, and the block must leave the data unchanged. */
async function block (name: string, work: () => Promise<void>) {
  await t.test(`CR-01: ${name}`, async (t) => {
    const { made } = attack.total
    accepted.length = 0
    await work()
    t.ok(attack.total.made > made, `${attack.total.made - made} manipulations`)
    t.same(accepted, [])
    for (const document of documents) {
      // Without LONG, only the read that needs the most rows.
      for (const read of LONG ? readsOf(document) : readsOf(document).slice(-1)) {
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

const projects = await service.sql('SELECT slug, id FROM projects')
const versions: Version[] = []
for (const document of documents) {
  const rows = await service.sql(
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
const isVersion = ({ caller, id }: Version, table = 'v') =>
  `${table}.organization_id = '${caller.organization}' AND ${table}.id = ${id}`
const versionsOf = (name: string) => versions.filter((version) => version.name.startsWith(name))
const [oldest, , rotation, newest] = versionsOf('rotated target') as [Version, Version, Version, Version]
const chosen = [
  oldest, rotation, newest, versionsOf('rotated environment')[0]!, versionsOf('plain')[0]!, versionsOf('foreign')[0]!,
  versionsOf('client environment')[0]!
]

// Manipulations read other rows from the copies, which have the same content. On a cluster, each row is on the node of
// its owner.
await block('documents copied onto others, between levels, projects, organizations and holders of the key', async () => {
  for (const [i, [to, from]] of sample(pairs(documents), 3).entries()) {
    for (const columns of LONG ? DOCUMENT : [DOCUMENT[i % DOCUMENT.length]!]) {
      const statement =
        `UPDATE secrets s SET ${copied(columns, 'o')} FROM kept.secrets o WHERE s.id = '${to.id}' AND o.id = '${from.id}'`
      await tamper(`${columns} of ${from.name} on ${to.name}`, ['secrets'], [statement], readsOf(to).slice(0, 2))
    }
  }
})

await block('documents swapped, whole or moved to another level', async () => {
  for (const [i, [a, b]] of sample(unordered(documents), 3).entries()) {
    const all = [['sealed'], DOCUMENT[3]!, ['level_id'], ['id']]
    for (const columns of LONG ? all : [all[i % 4]!]) {
      // A row under a level of another organization belongs to no level. This equals a deletion, which the service
      // cannot detect.
      if (columns.includes('level_id') && a.caller !== b.caller) continue
      const statement =
        `UPDATE secrets s SET ${copied(columns, 'o')} FROM kept.secrets o WHERE (s.id = '${a.id}' AND o.id = '${b.id}') OR (s.id = '${b.id}' AND o.id = '${a.id}')`
      await tamper(
        `${columns} of ${a.name} and ${b.name}`, ['secrets'], [statement], [readsOf(a)[0]!, readsOf(b)[0]!]
      )
    }
  }
  // Swaps the level ids through a temporary free id, so that no constraint can refuse the swap.
  const [a, b] = [documents[2]!, documents[3]!]
  const rename = (from: string, to: string) => `UPDATE secrets SET level_id = '${to}' WHERE level_id = '${from}'`
  const [{ x, y }] = await service.sql(
    `SELECT (SELECT level_id FROM secrets WHERE id = '${a.id}') AS x, (SELECT level_id FROM secrets WHERE id = '${b.id}') AS y`
  ) as [{ x: string, y: string }]
  await tamper(
    'levels exchanged', ['secrets'], [rename(x, 'z'), rename(y, x), rename('z', y)], [readsOf(a)[0]!, readsOf(b)[0]!]
  )
})

await block('versions copied onto others, swapped, renumbered and moved into other histories', async () => {
  for (const [i, [to, from]] of sample(pairs(chosen), 2).entries()) {
    const all = [
      ['sealed'], ['sealed', 'key_version'], ['sealed', 'revision', 'key_version', 'size_bytes', 'created_at']
    ]
    for (const columns of LONG ? all : [all[i % 3]!]) {
      const statement =
        `UPDATE secret_versions v SET ${copied(columns, 'o')} FROM kept.secret_versions o WHERE ${isVersion(to)} AND ${isVersion(from, 'o')}`
      await tamper(`${columns} of ${from.name} on ${to.name}`, ['secret_versions'], [statement], versionReads(to))
    }
    if (to.caller !== from.caller || to.name.split(' ')[1] === from.name.split(' ')[1]) continue
    const moved =
      `UPDATE secret_versions v SET history_id = o.history_id FROM kept.secret_versions o WHERE ${isVersion(to)} AND ${isVersion(from, 'o')}`
    await tamper(
      `${to.name} in the history of ${from.name}`, ['secret_versions'], [moved], versionReads(to).slice(0, 1)
    )
  }
  for (const [a, b] of sample(unordered(chosen), 3)) {
    const columns = ['sealed', 'revision', 'key_version', 'size_bytes', 'action']
    const statement =
      `UPDATE secret_versions v SET ${copied(columns, 'o')} FROM kept.secret_versions o WHERE (${isVersion(a)} AND ${isVersion(b, 'o')}) OR (${isVersion(b)} AND ${isVersion(a, 'o')})`
    await tamper(
      `${a.name} and ${b.name} swapped`, ['secret_versions'], [statement], [...versionReads(a), ...versionReads(b)]
    )
  }
  for (const [which, version] of chosen.entries()) {
    const renumbered = { ...version, id: 9000 + version.id }
    await tamper(
      `${version.name} under another number`, ['secret_versions'],
      [`UPDATE secret_versions v SET id = ${renumbered.id} WHERE ${isVersion(version)}`], versionReads(renumbered)
    )
    for (const change of byTurns(['revision = revision + 1', 'revision = 0', 'key_version = 3 - key_version'], which, 3)) {
      if (!/rotated|client env/.test(version.name) && change.startsWith('key')) continue
      await tamper(
        `${version.name}: ${change}`, ['secret_versions'],
        [`UPDATE secret_versions v SET ${change} WHERE ${isVersion(version)}`], versionReads(version)
      )
    }
  }
})

await block('documents and versions exchanged for each other', async () => {
  for (const [which, document] of documents.entries()) {
    for (const [i, version] of byTurns(versionsOf(document.name), which, 2).entries()) {
      for (const columns of LONG ? DOCUMENT.slice(0, 3) : [DOCUMENT[i % 3]!]) {
        const asDocument =
          `UPDATE secrets s SET ${copied(columns, 'v')} FROM kept.secret_versions v WHERE s.id = '${document.id}' AND ${isVersion(version)}`
        await tamper(
          `${columns} of version ${version.name} as the document`, ['secrets'], [asDocument],
          readsOf(document).slice(0, 1)
        )
      }
      const asVersion =
        `UPDATE secret_versions v SET ${copied(DOCUMENT[0]!, 's')}, ${copied(['revision', 'key_version'], 's')} FROM kept.secrets s WHERE s.id = '${document.id}' AND ${isVersion(version)}`
      await tamper(
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
  for (const [i, document] of documents.entries()) {
    for (const state of ['first', ...['rotated', 'moved', 'client'].includes(document.project) ? ['earlier'] : []]) {
      for (const columns of LONG ? sets : sets.filter((_, j) => j % 4 === i % 4)) {
        const statement =
          `UPDATE secrets s SET ${copied(columns, 'o')} FROM ${state}.secrets o WHERE s.id = o.id AND s.id = '${document.id}'`
        await tamper(`${columns} of ${document.name} as ${state}`, ['secrets'], [statement], readsOf(document))
      }
    }
  }
})

const disable = 'ALTER TABLE encryption_keys DISABLE TRIGGER keep_rotated_key'
const enable = 'ALTER TABLE encryption_keys ENABLE TRIGGER keep_rotated_key'
const idOf = (slug: string) => `'${String(projects.find((one) => one.slug === slug)!.id)}'`
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
  for (const slug of sample(['rotated', 'moved', 'client'], 2)) {
    const { path, body } = documents.find((document) => document.project === slug)!
    const all = allOf(slug)
    // A client that does not know about the rotation still has the proof of the old key.
    const store: Read = () => write(owner, body, 'A=4', slug === 'client' ? first : undefined)
    const storeAtNew: Read = () =>
      write(owner, { project: slug, target: 'backend' }, 'A=4', slug === 'client' ? first : undefined)
    const atNew = slug === 'rotated' ? [] : [storeAtNew]
    const decrypt: Read[] = slug === 'client' ? [] : [() => call(owner, 'GET', `${path}?decrypt=true`)]
    const key: Read = () => call(owner, 'GET', `/${slug}/encryption-key`)
    const undone = [...keyBack(slug), versionBack(slug)]
    await tamper(
      `${slug}: the key version set back`, tables, [versionBack(slug)],
      [...all, key, ...slug === 'client' ? [] : [store, ...atNew]]
    )
    await tamper(
      `${slug}: the key version set ahead`, tables, [`UPDATE projects SET key_version = 3 WHERE slug = '${slug}'`],
      [...all, key, ...slug === 'client' ? [] : [store, ...atNew]]
    )
    await tamper(`${slug}: the old key active`, tables, keyBack(slug), [...decrypt, key, store, ...atNew])
    await tamper(`${slug}: the old key active under its version`, tables, undone, [...all, key, store, ...atNew])
    await tamper(`${slug}: the documents put back`, tables, [documentsBack(slug)], all)
    await tamper(
      `${slug}: the documents and the key put back`, tables, [...undone, documentsBack(slug)],
      [...all, key, store, ...atNew]
    )
    await tamper(`${slug}: the documents put back, the new key gone`, tables, [
      disable, `DELETE FROM encryption_keys WHERE project_id = ${idOf(slug)} AND version = 2`, ...keyBack(slug)
        .slice(2), versionBack(slug), documentsBack(slug)
    ], [...all, store])
  }
})

await block('versions put back to before their re-encryption, under the new key version', async () => {
  for (const version of [...versionsOf('moved'), ...versionsOf('client ')]) {
    const [old] = await service.sql(
      `SELECT o.key_version < v.key_version AS moved FROM secret_versions v JOIN earlier.secret_versions o USING (organization_id, id) WHERE ${isVersion(version)}`
    )
    if (old?.moved !== true) continue
    const statement =
      `UPDATE secret_versions v SET sealed = o.sealed, size_bytes = o.size_bytes FROM earlier.secret_versions o WHERE ${isVersion(version)} AND ${isVersion(version, 'o')}`
    await tamper(`${version.name} as before`, ['secret_versions'], [statement], versionReads(version))
  }
})

await block('keys exchanged between versions, projects, organizations and columns', async () => {
  const keys = await service.sql(
    'SELECT k.id, k.version, k.managed, k.is_active, p.slug FROM encryption_keys k JOIN projects p ON (p.organization_id, p.id) = (k.organization_id, k.project_id) ORDER BY k.id'
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
      // No content uses that key any more, so no request reads its data key.
      if (column === 'data_key' && key.managed === 'server' && reads.length === 0) continue
      const others = keys.filter((one) =>
        one !== key && (reads.length > 0 ? one.managed === key.managed || column === 'salt' : true))
      for (const from of LONG ? others : others.filter((_, i) => i % 3 === 0)) {
        const value = reads.length > 0 ? `o.${column}` : 'o.salt'
        const statement =
          `UPDATE encryption_keys k SET ${column} = ${value} FROM kept.encryption_keys o WHERE k.id = ${key.id} AND o.id = ${from.id}`
        await tamper(
          `${column} of key ${from.version} of ${from.slug} in key ${key.version} of ${key.slug}`, ['encryption_keys'],
          [disable, statement, enable], reads
        )
        if (!key.is_active) {
          await tamper(`${column} of a frozen key of ${key.slug}`, ['encryption_keys'], [statement], reads)
        }
      }
    }
  }
})

await block('storage keys of other organizations', async () => {
  for (const [to, from] of pairs([owner, stranger])) {
    const own = documents.filter(({ caller }) => caller === to)
    const statement =
      `UPDATE organizations a SET storage_key = b.storage_key FROM organizations b WHERE a.id = '${to.organization}' AND b.id = '${from.organization}'`
    await tamper(
      'a storage key', ['organizations'], [statement],
      [...own.flatMap(readsOf), () => write(to, own[0]!.body, 'A=4'), ...versionsOf(own[0]!.name).flatMap(versionReads)]
    )
  }
})

await block('sealed content whose tag is cut to 0 to 15 bytes (CR-03)', async () => {
  const document = documents[0]!
  for (let tag = 0; tag < 16; tag += LONG ? 1 : 5) {
    const cut = (table: string, where: string) =>
      `UPDATE ${table} SET sealed = substring(sealed FOR length(sealed) - ${16 - tag}) WHERE ${where}`
    await tamper(
      `a document with a tag of ${tag}`, ['secrets'], [cut('secrets', `id = '${document.id}'`)], readsOf(document)
    )
    await tamper(
      `a version with a tag of ${tag}`, ['secret_versions'], [cut('secret_versions v', isVersion(oldest))],
      versionReads(oldest)
    )
  }
})

t.test('CR-01: at least 200 manipulations were refused, by the service and not by the database alone', async (t) => {
  attack.atLeast200(t)
})

t.test('CR-26: no update of a project, target or environment assigns anything of a key', async (t) => {
  const state = () =>
    service.sql(
      `SELECT k::text, p.key_version, p.encryption_type FROM encryption_keys k
        JOIN projects p ON (p.organization_id, p.id) = (k.organization_id, k.project_id) ORDER BY k.id`
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
  let tried = 0
  for (const slug of ['rotated', 'client']) {
    for (const path of [`/${slug}`, `/${slug}/backend`, `/${slug}/backend/live`]) {
      for (const method of ['PUT', 'PATCH']) {
        const which = tried++
        const members = Object.entries(assigned).filter((_, i) => LONG || i % 6 === which % 6)
        for (const body of [
          assigned, ...members.map(([member, value]) => ({ name: 'Renamed', [member]: value }))
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

t.test('CR-21: after rotations a dump of all tables has no proof, salt or key string of old or new keys', async (t) => {
  const { key } = (await call(owner, 'GET', '/rotated/encryption-key')).body.data.attributes
  const tables = await service.sql(
    "SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema IN ('public', 'first', 'earlier', 'kept')"
  )
  const rows = []
  for (const { table_schema, table_name } of tables) {
    rows.push(...await service.sql(`SELECT t::text AS row FROM ${table_schema}.${table_name} t`))
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

// Rows that decide about access

const test = await startIsolatedApp(t)
const { db } = test.database
const NAMES = Object.keys(AUTHENTICATED) as AuthenticatedTable[]
const { total, run, keep, takeBack, make, violations, atLeast200 } = attacker(test, NAMES)
const hex = (bytes: Buffer) => `'\\x${bytes.toString('hex')}'::bytea`
const [nimbus, other] = [await test.organization(), await test.organization()]
const [o, foreign] = [nimbus.organization, other.organization]
const [rosa, mallory] = [
  await makePerson(test, { [o]: 'owner', [foreign]: 'auditor' }),
  await makePerson(test, { [foreign]: 'owner', [o]: 'auditor' })
]

/** All credentials of a person. */
async function credentialsOf (person: typeof rosa, client_id: string) {
  const made = {
    cookie: mintSecret(),
    link: mintSecret(),
    reset: mintSecret(),
    pending: mintSecret(),
    code: mintCredential('ac'),
    verifier: pkce(),
    access: mintCredential('at'),
    refresh: mintCredential('rt'),
    step: mintSecret(),
    browser: mintSecret(),
    factor: await giveSecondFactor(test, person),
    grant: 0
  }
  const user = (await findUser(db, person.id))!
  const verified = { ...user, password_hash: user.password_hash! }
  const client = { browser: 'Firefox', system: 'Linux', network: '192.0.2.0/24' }
  await createSession(db, hashToken(made.cookie), verified, client)
  await createSignInStep(db, hashToken(`${made.step} ${made.browser}`), verified)
  await createPasswordLink(db, hashToken(made.link), person.id)
  await createPasswordReset(db, person.email, made.reset, person.id)
  await createRequest(
    db, hashToken(made.pending), hashToken(made.cookie),
    { client_id, redirect_uri: CALLBACK, state: 's', code_challenge: made.verifier.challenge, scopes: ['project:read'] }
  )
  made.grant = await createGrant(db, { user_id: person.id, client_id, scopes: ['project:read', 'organization:read'] })
  const of = await createGrant(db, { user_id: person.id, client_id, scopes: ['project:read'] })
  await createCode(db, {
    code_hash: hashToken(made.code), grant_id: of, redirect_uri: CALLBACK, code_challenge: made.verifier.challenge
  })
  await createPair(db, {
    grant_id: made.grant,
    access_hash: hashToken(made.access),
    refresh_hash: hashToken(made.refresh),
    scopes: ['project:read', 'organization:read']
  })
  return made
}
await createClient(db, { id: 'web', name: 'Web', redirect_uris: [CALLBACK] })
await createClient(db, { id: 'evil', name: 'Evil', redirect_uris: ['https://evil.example.com/callback'] })
const mine = await credentialsOf(rosa, 'web')
const theirs = await credentialsOf(mallory, 'evil')
// Codes expire after one minute; the tests need longer.
await test.write("UPDATE oauth_codes SET expires_at = now() + interval '1 hour'")
// The account page shows, to the minute, when a session was last used. A visit does not change a later time.
await test.write("UPDATE sessions SET seen_at = now() + interval '1 hour'")
const [narrow, theirToken] = [
  await test.token(o, ['project:read'], { expires_at: new Date(Date.now() + 3_600_000) }),
  await test.token(foreign, ['*'])
]
const [former, theirFormer] = [await test.token(o, ['project:read']), await test.token(foreign, ['*'])]
for (const { token } of [former, theirFormer]) await test.rotate(token, 3600)
const at = await makeLevel(nimbus, { slug: 'orbit' })
const besides = await makeLevel(nimbus, { slug: 'comet' })
for (const [level, of] of [[at, 'orbit'], [besides, 'comet']] as const) {
  for (const place of [{ project: level.project }, { project: level.project, target: level.target }, level]) {
    const { status, text } = await nimbus.call('POST', `/${o}/secrets/store`, { ...place, plaintext: `FROM=${of}` })
    if (status !== 200) throw new Error(text)
  }
}
const levelPath = `/${o}/${at.project}/${at.target}/${at.environment}/secrets`
const { etag } = (await nimbus.call('GET', levelPath)).headers

// One person has access to the project only through a team. A stronger team has another project.
const theo = await makePerson(test, { [o]: 'billing_manager' })
const theirsToo = await issuePair(test, theo, ['project:read', 'organization:read'])
const [team, anotherTeam] = ['01ARZ3NDEKTSV4RRFFQ69G5FA0', '01ARZ3NDEKTSV4RRFFQ69G5FA1']
for (const [id, slug, of, held, role] of [
  [team, 'ours', theo.id, 'orbit', 'member'], [anotherTeam, 'theirs', mallory.id, 'comet', 'administrator']
]) {
  await test.write(`INSERT INTO teams (id, organization_id, name, slug) VALUES ('${id}', '${o}', 'Team', '${slug}')`)
  await test.write(`INSERT INTO team_members (organization_id, team_id, user_id) VALUES ('${o}', '${id}', ${of})`)
  await test.write(`INSERT INTO team_projects (organization_id, team_id, project_id, role)
    SELECT '${o}', '${id}', id, '${role}' FROM projects WHERE organization_id = '${o}' AND slug = '${held}'`)
}

/** Creates a trust rule, and returns its id. */
async function makeRule ({ organization, call }: typeof nimbus): Promise<string> {
  const { body: { data }, text } = await call('POST', `/organizations/${organization}/workloads`, WORKLOAD)
  return data?.id ?? Promise.reject(new Error(text))
}
const [rule, theirRule] = [await makeRule(nimbus), await makeRule(other)]

// Ways to authenticate, each with the expected response. The test undoes the effects after each manipulation.
type Ask = () => Promise<Answer>
const bearer = (token: string, url: string) => () => test.inject({ url, headers: { authorization: `Bearer ${token}` } })
const page = (url: string, cookie?: string) =>
  () => test.inject({ url, headers: cookie === undefined ? {} : { cookie: `session=${cookie}` } })
const form = (url: string, fields: Record<string, string>, cookie?: string) => () => test.inject({
  method: 'POST',
  url,
  headers: {
    'content-type': 'application/x-www-form-urlencoded', 'sec-fetch-site': 'same-origin', ...(cookie && { cookie })
  },
  payload: new URLSearchParams(fields).toString()
})
const exchange = (code: string, code_verifier: string, client_id = 'web') =>
  form('/api/oauth/token', { grant_type: 'authorization_code', code, code_verifier, client_id, redirect_uri: CALLBACK })
const signIn = (email: string, password: string): Ask => async () => {
  await test.sql('DELETE FROM sign_in_failures')
  const browser = mintSecret()
  return form('/oauth/sign-in', { form_token: formToken(browser), query: '', email, password }, `browser=${browser}`)()
}

const giveCode = (code: () => string | Promise<string>): Ask => async () => {
  await test.sql('DELETE FROM sign_in_failures')
  const { step, browser } = mine
  return form(
    '/oauth/sign-in/code', { form_token: formToken(browser), query: '', step, code: await code() }, `browser=${browser}`
  )()
}

// An organization that invites Rosa and another address, and one event for each account.
const inviting = (await test.organization()).organization
const invited = mintSecret()
const NO_PLACE = { place: null, place_role: null }
const [invitation, anotherInvitation] = [
  await createInvitation(
    db, { organization_id: inviting, id: ulid(), email: rosa.email, role: 'auditor', ...NO_PLACE, invited_by: null },
    hashToken(invited)
  ),
  await createInvitation(
    db, { organization_id: inviting, id: ulid(), email: 'ben@nimbus.example', role: 'owner', ...NO_PLACE, invited_by: null },
    hashToken(mintSecret())
  )
]
for (const { id } of [rosa, mallory]) {
  await createPersonalEvent(db, {
    user_id: id, action: 'session.create', actor_type: 'user', ip: '192.0.2.1', user_agent: 'Browser', details: {}
  })
}

/** Creates late events (without a number) in both organizations. */
async function makeLate () {
  for (const of of [o, foreign]) {
    const event = {
      ...eventRow(operatorOf(of), { action: 'session.create', resource_type: 'user', resource_id: 'late' }),
      occurred_at: '2026-03-01T12:00:00.000Z'
    }
    await test.write(`INSERT INTO late_events (organization_id, occurred_at, event)
      VALUES ('${of}', '${event.occurred_at}', '${JSON.stringify(event)}')`)
  }
}
await makeLate()

/** Replaces the late events, because a sign-in may number them. */
async function renewLate () {
  await run(['DELETE FROM late_events'])
  await makeLate()
  await run(['DELETE FROM kept.late_events', 'INSERT INTO kept.late_events SELECT * FROM late_events'])
}

/** Numbers the late events. Returns the events that this adds to the chains. */
async function numberLate (): Promise<Answer> {
  const numbered = async () => (await test.sql(`SELECT organization_id || ' ' || seq AS event FROM audit_events
    WHERE action <> 'integrity.violation' ORDER BY organization_id, seq`)).map(({ event }) => String(event))
  const before = new Set(await numbered())
  for (const organization of [o, foreign]) {
    await until(async () => await recordLate(db, organization) === 0, { every: 0 })
  }
  const late = (await numbered()).filter((event) => !before.has(event)).map((event) => event.split(' ')[0])
  await renewLate()
  return { status: 200, headers: {}, text: late.join(), body: late }
}

const asks = {
  token: bearer(narrow.token, '/api/v1/organization'),
  former: bearer(former.token, '/api/v1/organization'),
  session: page('/account', mine.cookie),
  link: page(`/account/set-password/${mine.link}`),
  reset: page(`/account/reset-password/${mine.reset}`),
  invitation: page(`/account/invitation/${inviting}.${invited}`),
  access: bearer(mine.access, '/api/v1/user'),
  member: bearer(mine.access, `/api/v1/${o}/projects`),
  organizations: bearer(mine.access, '/api/v1/organizations'),
  team: () => nimbus.call('GET', `/organizations/${o}/teams/ours`),
  teamed: bearer(theirsToo.access, `/api/v1/${o}/${at.project}`),
  rule: () => nimbus.call('GET', `/organizations/${o}/workloads/${rule}`),
  refresh: form('/api/oauth/token', { grant_type: 'refresh_token', refresh_token: mine.refresh, client_id: 'web' }),
  code: exchange(mine.code, mine.verifier.verifier),
  authorize: page(authorizationUrl(mine.verifier.challenge, { client_id: 'web' }), mine.cookie),
  decision: form(
    '/oauth/authorize/decision', { form_token: formToken(mine.cookie), request: mine.pending, decision: 'deny' },
    `session=${mine.cookie}`
  ),
  password: signIn(rosa.email, rosa.password),
  factor: giveCode(() => mine.factor.code()),
  recovery: giveCode(() => mine.factor.codes[0]!),
  level: () => nimbus.call('GET', levelPath, undefined, { 'if-none-match': String(etag) }),
  decrypted: () => nimbus.call('GET', `${levelPath}?decrypt=true&merge=true`),
  late: numberLate
} satisfies Record<string, Ask>

interface Subject {
  /** The row of the subject, and a row of the same kind that belongs to another subject. */
  row: string
  another: string
  asks: (keyof typeof asks)[]
  /**
   * Columns that the service uses to find the row or to check whether it has ended. With another value, the service
   * finds no row.
   */
  finds: string[]
  /**
   * Columns that refer to the owner of the row. An unknown owner also hides the row, so the test tries only another
   * existing owner.
   */
  refers?: string[]
}
const id = async (query: string) => `id = '${String((await test.sql(`SELECT id FROM ${query}`))[0]!.id)}'`
const users = (person: { id: number }) => `id = ${person.id}`
const projectIds = await test.sql(`SELECT id, slug FROM projects WHERE organization_id = '${o}'`)
const project = (slug: string) => `'${String(projectIds.find((one) => one.slug === slug)!.id)}'`
const SUBJECTS: Record<AuthenticatedTable, Subject> = {
  users: {
    row: users(rosa),
    another: users(mallory),
    asks: ['session', 'access', 'link', 'reset', 'password', 'factor'],
    finds: ['id', 'email_normalized', 'disabled_at']
  },
  members: {
    row: `organization_id = '${o}' AND user_id = ${rosa.id}`,
    another: `organization_id = '${o}' AND user_id = ${mallory.id}`,
    asks: ['member', 'organizations'],
    finds: ['organization_id', 'user_id', 'status']
  },
  invitations: {
    row: `organization_id = '${inviting}' AND id = '${invitation.id}'`,
    another: `organization_id = '${inviting}' AND id = '${anotherInvitation.id}'`,
    asks: ['invitation', 'session'],
    finds: ['organization_id', 'token_hash', 'email_normalized']
  },
  personal_events: {
    row: `user_id = ${rosa.id}`, another: `user_id = ${mallory.id}`, asks: ['session'], finds: ['user_id']
  },
  teams: {
    row: `organization_id = '${o}' AND id = '${team}'`,
    another: `organization_id = '${o}' AND id = '${anotherTeam}'`,
    asks: ['team'],
    finds: ['organization_id', 'id', 'slug']
  },
  team_members: {
    row: `organization_id = '${o}' AND team_id = '${team}'`,
    another: `organization_id = '${o}' AND team_id = '${anotherTeam}'`,
    asks: ['teamed'],
    finds: ['organization_id', 'team_id', 'user_id']
  },
  team_projects: {
    row: `organization_id = '${o}' AND team_id = '${team}'`,
    another: `organization_id = '${o}' AND team_id = '${anotherTeam}'`,
    asks: ['teamed'],
    finds: ['organization_id', 'team_id', 'project_id']
  },
  sessions: {
    row: `token_hash = ${hex(hashToken(mine.cookie))}`,
    another: `token_hash = ${hex(hashToken(theirs.cookie))}`,
    asks: ['session'],
    finds: ['token_hash'],
    refers: ['user_id']
  },
  password_links: {
    row: `token_hash = ${hex(hashToken(mine.link))}`,
    another: `token_hash = ${hex(hashToken(theirs.link))}`,
    asks: ['link'],
    finds: ['token_hash'],
    refers: ['user_id']
  },
  password_resets: {
    row: `user_id = ${rosa.id}`,
    another: `user_id = ${mallory.id}`,
    asks: ['reset'],
    finds: ['token_hash'],
    refers: ['user_id']
  },
  second_factors: {
    row: `user_id = ${rosa.id}`, another: `user_id = ${mallory.id}`, asks: ['factor', 'recovery'], finds: ['user_id']
  },
  recovery_codes: {
    row: `code_hash = ${hex(hashRecoveryCode(mine.factor.codes[0]!))}`,
    another: `code_hash = ${hex(hashRecoveryCode(theirs.factor.codes[0]!))}`,
    asks: ['recovery'],
    finds: ['user_id', 'code_hash']
  },
  sign_in_steps: {
    row: `token_hash = ${hex(hashToken(`${mine.step} ${mine.browser}`))}`,
    another: `token_hash = ${hex(hashToken(`${theirs.step} ${theirs.browser}`))}`,
    asks: ['factor', 'recovery'],
    finds: ['token_hash'],
    refers: ['user_id']
  },
  api_tokens: {
    row: `token_hash = ${hex(hashToken(narrow.token))}`,
    another: `token_hash = ${hex(hashToken(theirToken.token))}`,
    asks: ['token'],
    finds: ['token_hash', 'organization_id']
  },
  former_token_hashes: {
    row: `token_hash = ${hex(hashToken(former.token))}`,
    another: `token_hash = ${hex(hashToken(theirFormer.token))}`,
    asks: ['former'],
    finds: ['token_hash', 'organization_id', 'token_id']
  },
  workload_rules: {
    row: `organization_id = '${o}' AND id = ${rule}`,
    another: `organization_id = '${foreign}' AND id = ${theirRule}`,
    asks: ['rule'],
    finds: ['organization_id', 'id']
  },
  oauth_clients: {
    row: "id = 'web'", another: "id = 'evil'", asks: ['authorize', 'access'], finds: ['id', 'disabled_at']
  },
  oauth_requests: {
    row: `id_hash = ${hex(hashToken(mine.pending))}`,
    another: `id_hash = ${hex(hashToken(theirs.pending))}`,
    asks: ['decision'],
    finds: ['id_hash', 'session_hash']
  },
  oauth_grants: {
    row: `id = ${mine.grant}`,
    another: `id = ${theirs.grant}`,
    asks: ['access', 'refresh'],
    finds: ['id', 'revoked_at'],
    refers: ['user_id', 'client_id']
  },
  oauth_codes: {
    row: `code_hash = ${hex(hashToken(mine.code))}`,
    another: `code_hash = ${hex(hashToken(theirs.code))}`,
    asks: ['code'],
    finds: ['code_hash', 'used_at', 'redirect_uri'],
    refers: ['grant_id']
  },
  oauth_tokens: {
    row: `access_hash = ${hex(hashToken(mine.access))}`,
    another: `access_hash = ${hex(hashToken(theirs.access))}`,
    asks: ['access', 'refresh'],
    finds: ['access_hash', 'refresh_hash', 'used_at'],
    refers: ['grant_id']
  },
  projects: {
    row: `id = ${project('orbit')}`,
    another: `id = ${project('comet')}`,
    asks: ['level', 'decrypted'],
    finds: ['id', 'organization_id', 'slug']
  },
  targets: {
    row: await id(`targets WHERE project_id = ${project('orbit')}`),
    another: await id(`targets WHERE project_id = ${project('comet')}`),
    asks: ['level', 'decrypted'],
    finds: ['id', 'organization_id', 'project_id', 'slug']
  },
  environments: {
    row: await id(`environments WHERE project_id = ${project('orbit')}`),
    another: await id(`environments WHERE project_id = ${project('comet')}`),
    asks: ['level', 'decrypted'],
    finds: ['id', 'organization_id', 'target_id', 'slug']
  },
  late_events: {
    row: `organization_id = '${o}'`,
    another: `organization_id = '${foreign}'`,
    asks: ['late'],
    finds: ['organization_id', 'id']
  },
  secrets: {
    row: await id(`secrets WHERE project_id = ${project('orbit')} AND level = 'environment'`),
    another: await id(`secrets WHERE project_id = ${project('comet')} AND level = 'environment'`),
    asks: ['level', 'decrypted'],
    finds: ['level_id', 'organization_id']
  }
}
const LEVELS = new Set<string>(['projects', 'targets', 'environments', 'secrets'])

await keep('kept')

// Changes the subject's row by inserting a changed copy. On a cluster, a row with another organization belongs on
// another node.
const changeRow = (table: AuthenticatedTable, set: string, from = '') => [
  `CREATE TEMP TABLE changed ON COMMIT DROP AS SELECT * FROM kept.${table} WHERE ${SUBJECTS[table].row}`,
  `UPDATE changed SET ${set} ${from}`,
  `DELETE FROM ${table} WHERE ${SUBJECTS[table].row}`,
  `INSERT INTO ${table} OVERRIDING SYSTEM VALUE SELECT * FROM changed`
]

// Removes the parts of a response that differ between equal requests.
const plain = ({ status, text }: Answer) =>
  `${status} ${text.replace(/nonce="[^"]+"|name="form_token" value="[^"]+"|"timestamp":"[^"]+"/g, '')}`
const recorded = async () => {
  await authorityOf(db).settled()
  return {
    events: await violations(), lines: test.logs.filter((line) => line.includes('changed outside the service')).length
  }
}

const missing = new Map<string, Map<string, string>>()
/**
 * Executes a manipulation. Checks that every request that needs the row gets the same response as without the row, or
 * refuses the level.
 */
async function manipulate (
  table: AuthenticatedTable, name: string, statements: string[], { isFound = true, isNew = true } = {}
): Promise<string[]> {
  if (!await make(["SET LOCAL session_replication_role = 'replica'", ...statements], '2')) return []
  const wrong: string[] = []
  const before = await recorded()
  for (const ask of SUBJECTS[table].asks) {
    const answer = plain(await asks[ask]())
    const absent = missing.get(table)!.get(ask)!
    const isRefused = LEVELS.has(table) ? answer === REFUSED || (!isFound && answer === absent) : answer === absent
    if (!isRefused) wrong.push(`${table}: ${name}: ${ask}: ${answer.slice(0, 300)} instead of ${absent.slice(0, 100)}`)
  }
  const after = await recorded()
  // An OAuth client belongs to no organization, so only the log records its violation, except for a violation about a
  // person's grant.
  const isRecorded = table === 'oauth_clients' ? after.lines > before.lines : after.events > before.events
  if (isFound && isNew && !isRecorded) wrong.push(`${table}: ${name}: nothing was recorded`)
  await takeBack()
  return wrong
}

t.test('every column of these tables is authenticated, or exempt for a reason', async (t) => {
  const key = (name: string) => AUTHENTICATED[name as AuthenticatedTable]
  for (const name of NAMES) {
    const { table, fields, exempt } = key(name)
    t.strictSame(Object.keys(getTableColumns(table)).sort(), [...fields, ...Object.keys(exempt), 'mac'].sort(), name)
    for (const reason of Object.values(exempt)) t.ok(reason.length > 5)
    const columns = await test.sql(
      `SELECT column_name FROM information_schema.columns WHERE table_schema = 'public' AND table_name = '${name}' ORDER BY 1`
    )
    t.strictSame(
      columns.map(({ column_name }) => column_name), Object.keys(getTableColumns(table)).sort(),
      `${name} in the database`
    )
  }
})

t.test('everybody is who they are while nothing is touched, and nothing is recorded', async (t) => {
  for (const [name, ask] of Object.entries(asks)) {
    const { status, text } = await ask()
    t.ok([200, 303, 304].includes(status), `${name}: ${status} ${text.slice(0, 200)}`)
    await takeBack()
  }
  t.match(await recorded(), { events: 0, lines: 0 })
  t.strictSame((await asks.late()).body.sort(), [o, foreign].sort(), 'what is late gets its number')
  await takeBack()
  // The responses without the row.
  for (const table of NAMES) {
    if (table === 'late_events') await renewLate()
    const answers = new Map<string, string>()
    for (const ask of SUBJECTS[table].asks) {
      await run(["SET LOCAL session_replication_role = 'replica'", `DELETE FROM ${table} WHERE ${SUBJECTS[table].row}`])
      answers.set(ask, plain(await asks[ask]()))
      await takeBack()
    }
    missing.set(table, answers)
  }
})

t.test('a late event that has its number gets no other one, even if a copy of it is put back', async (t) => {
  await renewLate()
  await run(['CREATE TABLE kept.copies AS SELECT * FROM late_events'])
  const [{ id }] = await test.sql(`SELECT id::float8 AS id FROM late_events WHERE organization_id = '${o}'`) as [{ id: number }]
  t.strictSame((await asks.late()).body.sort(), [o, foreign].sort())
  const numbered = () => test.sql(`SELECT seq::int FROM audit_events
    WHERE organization_id = '${o}' AND details = '{"late": ${id}}' AND resource_id = 'late'`)
  t.equal((await numbered()).length, 1, 'which says which one it was')
  const before = await recorded()
  await run([
    'DELETE FROM late_events', 'INSERT INTO late_events OVERRIDING SYSTEM VALUE SELECT * FROM kept.copies'
  ])
  t.strictSame((await asks.late()).body, [])
  t.equal((await numbered()).length, 1)
  t.match(await recorded(), { events: before.events + 2, lines: before.lines + 2 })
  await takeBack()
})

t.test('nothing that has ended comes back when its mark is taken away', async (t) => {
  const pairOf = async (ask: Ask) => (await ask()).body as { access_token: string, refresh_token: string }
  const revived: [name: string, end: () => Promise<unknown>, statement: string, ask: Ask][] = [
    [
      'a revoked grant', () => revokeGrant(db, mine.grant),
      `UPDATE oauth_grants SET revoked_at = NULL WHERE id = ${mine.grant}`, asks.access
    ],
    [
      'a revoked grant, refreshed', () => revokeGrant(db, mine.grant),
      `UPDATE oauth_grants SET revoked_at = NULL WHERE id = ${mine.grant}`, asks.refresh
    ],
    [
      'grants of a new password', () => endEverything(db, rosa.id),
      `UPDATE oauth_grants SET revoked_at = NULL WHERE id = ${mine.grant}`, asks.access
    ],
    [
      'a used code', () => pairOf(asks.code), `UPDATE oauth_codes SET used_at = NULL WHERE ${SUBJECTS.oauth_codes.row}`,
      asks.code
    ],
    [
      'a used refresh token', () => pairOf(asks.refresh),
      `UPDATE oauth_tokens SET used_at = NULL WHERE ${SUBJECTS.oauth_tokens.row}`, asks.refresh
    ],
    [
      'the access token of a used pair', () => pairOf(asks.refresh),
      `UPDATE oauth_tokens SET used_at = NULL WHERE ${SUBJECTS.oauth_tokens.row}`, asks.access
    ],
    [
      'a closed account', () => transaction(db, (db) => setDisabled(db, rosa.id, true)),
      `UPDATE users SET disabled_at = NULL WHERE id = ${rosa.id}`, asks.password
    ],
    [
      'a client that is shut out', () => setClientDisabled(db, 'web', true),
      "UPDATE oauth_clients SET disabled_at = NULL WHERE id = 'web'", asks.authorize
    ],
    ['a burnt code', async () => {
      for (let i = 0; i < 5; i++) await exchange(mine.code, pkce().verifier)()
    }, `UPDATE oauth_codes SET expires_at = now() + interval '1 minute', wrong_verifiers = 0 WHERE ${SUBJECTS.oauth_codes.row}`, asks.code]
  ]
  const told = new Set<string>()
  for (const [name, end, statement, ask] of revived) {
    total.made++
    await end()
    await test.sql(statement)
    const before = await recorded()
    const { status, text } = await ask()
    t.ok([400, 401, 422].includes(status), `${name}: ${status} ${text.slice(0, 200)}`)
    // The service reports the same state of the same row only once.
    if (!told.has(statement)) t.ok((await recorded()).lines > before.lines, `${name} is told of`)
    told.add(statement)
    await takeBack()
  }
})

// Other values for a column of the subject's row, in addition to the value from another subject's row.
function valuesFor (column: { dataType: string, notNull: boolean, name: string }): string[] {
  const { dataType, name } = column
  if (dataType === 'array') return [`array_append(${name}, '*')`, "'{}'"]
  if (dataType === 'date') {
    return [`coalesce(${name}, now()) + interval '1 year'`, `coalesce(${name}, now()) + interval '1 millisecond'`]
  }
  // Only existing grants, because with an unknown id the service would not find the row.
  if (name === 'grant_id') return [String(mine.grant), String(theirs.grant)]
  if (dataType === 'number') return [`coalesce(${name}, 0) + 1`]
  if (dataType === 'boolean') return [`NOT coalesce(${name}, false)`]
  if (dataType === 'json') {
    return ['\'[]\'::jsonb', '\'[{"project_id":"x","target_id":null,"environment_id":null}]\'::jsonb']
  }
  if (dataType === 'custom') return [`sha256(${name})`, "''::bytea"]
  return [`${name} || 'x'`, "''", `upper(${name})`, '\'owner\'']
}

t.test('rows of a deleted account or grant belong to no later one, wherever the database’s sequences stand', async (t) => {
  const service = await startIsolatedApp(t)
  const { db } = service.database
  const { organization } = await service.organization()
  const make = async () => {
    const person = await makePerson(service, { [organization]: 'owner' })
    await createSession(
      db, hashToken(mintSecret()), { id: person.id, password_hash: (await findUser(db, person.id))!.password_hash! }
    )
    return { person, ...await issuePair(service, person, ['project:read']) }
  }
  const own = await make()
  t.equal(
    (await service.inject({ url: '/api/v1/user', headers: { authorization: `Bearer ${own.access}` } })).status, 200
  )
  const kept = ['sessions', 'members', 'oauth_tokens']
  for (const table of kept) await service.sql(`CREATE TABLE kept_${table} AS SELECT * FROM ${table}`)
  await service.sql('DELETE FROM users')
  for (const table of ['users', 'oauth_grants', 'oauth_tokens', 'api_tokens']) {
    await service.sql(`SELECT setval(pg_get_serial_sequence('${table}', 'id'), 1, false)`)
  }
  const others = [await make(), await make(), await make()]
  for (const { person, grant } of others) {
    t.ok(person.id > own.person.id && grant > own.grant, 'a later id is a larger one')
  }
  for (const table of kept) {
    await t.rejects(
      service.sql(`INSERT INTO ${table} OVERRIDING SYSTEM VALUE SELECT * FROM kept_${table}`), 'it refers to no person'
    )
  }
})

t.test('a pair of tokens can do no more than its grant says', async (t) => {
  const access = mintCredential('at')
  const grant = await createGrant(db, { user_id: rosa.id, client_id: 'web', scopes: ['organization:read'] })
  await createPair(db, {
    grant_id: grant,
    access_hash: hashToken(access),
    refresh_hash: hashToken(mintCredential('rt')),
    scopes: ['organization:read', 'project:read']
  })
  t.match(
    await bearer(access, `/api/v1/${o}/projects`)(),
    { status: 403, body: { details: { granted_scopes: ['organization:read'] } } }
  )
})

t.test('a token that was written by SQL is not listed, in whatever form it is, and the others are', async (t) => {
  const service = await startIsolatedApp(t)
  const owner = await service.organization()
  const list = async () => (await owner.call(
    'GET', `/organizations/${owner.organization}/api-keys`
  )).body.data.map(({ name }: { name: string }) => name)
  await service.token(owner.organization, ['secret:read'])
  const slices = ['null', "'[]'", '\'{"project_id":1}\'', '\'[1, null]\'', '\'"x"\'']
  for (const [i, value] of slices.entries()) {
    await service.sql(`
      INSERT INTO api_tokens (organization_id, name, token_hash, token_prefix, token_suffix, abilities, slices)
      VALUES ('${owner.organization}', 'Forged', sha256('${i}'), 'dotenv_', '', '{*}', ${value}::jsonb)`)
  }
  t.strictSame(await list(), ['Test token', 'Test token'])
  await service.sql("UPDATE api_tokens SET abilities = '{*}' WHERE abilities = '{secret:read}'")
  t.strictSame(await list(), ['Test token'])
  const person = await makePerson(service)
  const listed = async () => (await listTokensOfPerson(service.database.db, person.id)).rows.length
  await service.sql(`UPDATE api_tokens SET user_id = ${person.id}`)
  t.equal(await listed(), 0, 'nor to the person that it names')
  await service.write(`UPDATE api_tokens SET user_id = ${person.id} WHERE name <> 'Forged'`)
  t.ok(await listed() > 0)
})

t.test('few transactions record the rows that a list leaves out, however many, so requests keep connections', async (t) => {
  const service = await startIsolatedApp(t)
  const { call, organization } = await service.organization()
  const forged = 300
  await service.sql(`INSERT INTO api_tokens (organization_id, name, token_hash, token_prefix, token_suffix, abilities)
    SELECT '${organization}', 'Forged', sha256(n::text::bytea), 'dotenv_', '', '{*}' FROM generate_series(1, ${forged}) n`)
  let begun = 0
  const count = (message: unknown) => { if ((message as { phase: string }).phase === 'begin') begun++ }
  subscribe('strongroom:statement', count)
  t.teardown(() => unsubscribe('strongroom:statement', count))
  t.equal((await call('GET', `/organizations/${organization}/api-keys`)).body.data.length, 1)
  await authorityOf(service.database.db).settled()
  t.ok(begun <= forged / 10, `${begun} transactions`)
  t.same(await service.sql(`SELECT count(*)::int AS events FROM audit_events
    WHERE organization_id = '${organization}' AND action = 'integrity.violation'`), [{ events: forged }])
})

for (const table of NAMES) {
  t.test(`${table}: no column can be changed, copied, swapped or emptied`, async (t) => {
    if (table === 'late_events') await renewLate()
    const { row, another, finds, refers = [] } = SUBJECTS[table]
    const { fields, presence } = AUTHENTICATED[table] as { fields: readonly string[], presence: readonly string[] }
    const columns = getTableColumns(AUTHENTICATED[table].table as typeof tables.users) as unknown as Record<string, {
      dataType: string
      notNull: boolean
      name: string
    }>
    const [subject, somebody] = [
      (await test.sql(`SELECT * FROM ${table} WHERE ${row}`))[0]!,
      (await test.sql(`SELECT * FROM ${table} WHERE ${another}`))[0]!
    ]
    const wrong: string[] = []
    let tried = 0
    for (const field of fields) {
      const isFound = !finds.includes(field)
      // Sealed content is authenticated by its own seal. The MAC covers only whether the content exists.
      const isSealed = presence.includes(field)
      const values = isSealed || refers.includes(field) ? [] : valuesFor(columns[field]!)
      if (!columns[field]!.notNull && subject[field] !== null) values.push('NULL')
      if (!isSealed && somebody[field] !== null) values.push(`(SELECT ${field} FROM kept.${table} WHERE ${another})`)
      const seen = new Set([JSON.stringify(subject[field])])
      const before = tried
      for (const value of LONG ? values : [...values.slice(before % 3), ...values.slice(0, before % 3)]) {
        const [result] = await test.sql(`SELECT ${value} AS value FROM kept.${table} WHERE ${row}`)
        // Without LONG, one value for each column; the kinds of values alternate.
        if (seen.has(JSON.stringify(result!.value)) || (!LONG && tried > before)) continue
        seen.add(JSON.stringify(result!.value))
        tried++
        wrong.push(...await manipulate(
          table, `${field} = ${value}`, changeRow(table, `${field} = ${value}`), { isFound }
        ))
      }
    }
    // All columns of another subject with its MAC, except the columns that the service uses to find the row.
    const differs = (field: string) => JSON.stringify(subject[field]) !== JSON.stringify(somebody[field])
    const copied = [...fields.filter((field) => !finds.includes(field) && differs(field)), 'mac']
    for (const set of copied.length > 1 ? [copied, ['mac']] : [copied]) {
      wrong.push(...await manipulate(
        table, `${set.join(', ')} of another`,
        changeRow(
          table, set.map((field) => `${field} = o.${field}`).join(', '),
          `FROM (SELECT * FROM kept.${table} WHERE ${another}) o`
        )
      ))
      tried++
    }
    const macs = ["''", 'substring(mac for 16)', 'sha256(mac)', "mac || '\\x00'::bytea", 'NULL']
    for (const mac of LONG ? macs : macs.filter((_, i) => i % 2 === 0)) {
      wrong.push(...await manipulate(
        table, `mac = ${mac}`, changeRow(table, `mac = ${mac}`), { isNew: mac !== 'NULL' }
      ))
      tried++
    }
    t.same(wrong, [])
    t.ok(tried > (LONG ? 8 : 4), `${tried} manipulations`)
  })
}

t.test('nothing that was added to the database counts', async (t) => {
  const secret = mintSecret()
  const made = {
    token: mintApiToken(o), access: mintCredential('at'), refresh: mintCredential('rt'), code: mintCredential('ac')
  }
  const argon = await hashPassword('intruder of the night')
  const none = await test.inject({
    url: '/api/v1/organization', headers: { authorization: `Bearer ${mintApiToken(o)}` }
  })
  const added: [
    name: string, statements: (mac: string) => string[], ask: Ask, refused: (answer: Answer) => boolean
  ][] = [
    ['an API token', (mac) =>
      [
        `INSERT INTO api_tokens (organization_id, name, token_hash, token_prefix, token_suffix, abilities, mac) VALUES ('${o}', 'x', ${hex(hashToken(made.token))}, 'dotenv_', '', '{*}', ${mac})`
      ],
    bearer(made.token, '/api/v1/organization'), (answer) => plain(answer) === plain(none)],
    ['a session', (mac) =>
      [
        `INSERT INTO sessions (token_hash, user_id, expires_at, mac) VALUES (${hex(hashToken(secret))}, ${rosa.id}, now() + interval '1 day', ${mac})`
      ],
    page('/account', secret), ({ text }) => text.includes('name="password"')],
    ['a recovery code', (mac) =>
      [
        `INSERT INTO recovery_codes (user_id, code_hash, factor_id, mac) SELECT ${rosa.id}, ${hex(hashRecoveryCode('aaaa-bbbb-cccc-dddd'))}, second_factor_id, ${mac} FROM users WHERE id = ${rosa.id}`
      ],
    giveCode(() => 'aaaa-bbbb-cccc-dddd'), ({ status }) => status === 422],
    ['a sign-in whose password was right', (mac) =>
      [
        `INSERT INTO sign_in_steps (token_hash, user_id, expires_at, mac) VALUES (${hex(hashToken(`${secret} ${mine.browser}`))}, ${rosa.id}, now() + interval '1 minute', ${mac})`
      ],
    async () => form('/oauth/sign-in/code', {
      form_token: formToken(mine.browser), query: '', step: secret, code: await mine.factor.code()
    }, `browser=${mine.browser}`)(), ({ status }) => status === 422],
    ['a link', (mac) =>
      [
        `INSERT INTO password_links (token_hash, user_id, expires_at, mac) VALUES (${hex(hashToken(secret))}, ${rosa.id}, now() + interval '1 day', ${mac})`
      ],
    page(`/account/set-password/${secret}`), ({ status }) => status === 404],
    ['a link to reset the password', (mac) =>
      [
        `INSERT INTO password_resets (address_hash, token_hash, user_id, expires_at, mac) VALUES ('\\x01', ${hex(lookupHash(db, 'password reset', { secret }))}, ${rosa.id}, now() + interval '1 minute', ${mac})`
      ],
    page(`/account/reset-password/${secret}`), ({ status }) => status === 404],
    ['a membership', (mac) => [`INSERT INTO organizations SELECT '01ARZ3NDEKTSV4RRFFQ69G5FAV', 'x-org', storage_key FROM organizations WHERE id = '${o}'`,
      "INSERT INTO organization_counters (organization_id, name, plan) VALUES ('01ARZ3NDEKTSV4RRFFQ69G5FAV', 'X', 'self-hosted') ON CONFLICT DO NOTHING",
      `INSERT INTO members (organization_id, user_id, role, mac) VALUES ('01ARZ3NDEKTSV4RRFFQ69G5FAV', ${rosa.id}, 'owner', ${mac})`],
    bearer(mine.access, '/api/v1/x-org/projects'), ({ status }) => status === 404],
    ['an account', (mac) =>
      [
        `INSERT INTO users (email, email_normalized, name, password_hash, is_verified, mac) VALUES ('i@evil.example', 'i@evil.example', 'I', '${argon}', true, ${mac})`
      ],
    signIn('i@evil.example', 'intruder of the night'), ({ status }) => status === 422],
    ['an application', (mac) =>
      [
        `INSERT INTO oauth_clients (id, name, redirect_uris, is_first_party, mac) VALUES ('planted', 'P', '{https://evil.example.com/cb}', true, ${mac})`
      ],
    page(authorizationUrl(
      mine.verifier.challenge, { client_id: 'planted', redirect_uri: 'https://evil.example.com/cb' }
    ), mine.cookie), ({ status }) => status === 400],
    ['a pair of tokens', (mac) => [`INSERT INTO oauth_tokens (grant_id, access_hash, refresh_hash, scopes, access_expires_at, refresh_expires_at, mac)
      VALUES (${mine.grant}, ${hex(hashToken(made.access))}, ${hex(hashToken(made.refresh))}, '{*}', now() + interval '1 day', now() + interval '1 day', ${mac})`],
    bearer(made.access, '/api/v1/user'), ({ status }) => status === 401],
    ['a refresh token', (mac) => [`INSERT INTO oauth_tokens (grant_id, access_hash, refresh_hash, scopes, access_expires_at, refresh_expires_at, mac)
      VALUES (${mine.grant}, ${hex(hashToken(made.access))}, ${hex(hashToken(made.refresh))}, '{*}', now() + interval '1 day', now() + interval '1 day', ${mac})`],
    form(
      '/api/oauth/token', { grant_type: 'refresh_token', refresh_token: made.refresh, client_id: 'web' }
    ), ({ body }) => body.error === 'invalid_grant'],
    ['a code', (mac) => [`INSERT INTO oauth_codes (code_hash, grant_id, redirect_uri, code_challenge, expires_at, mac)
      VALUES (${hex(hashToken(made.code))}, ${mine.grant}, '${CALLBACK}', '${mine.verifier.challenge}', now() + interval '1 minute', ${mac})`],
    exchange(made.code, mine.verifier.verifier), ({ body }) => body.error === 'invalid_grant']
  ]
  const macs = [
    ...await test.sql(`SELECT mac FROM api_tokens WHERE ${SUBJECTS.api_tokens.another}`),
    ...await test.sql(`SELECT mac FROM sessions WHERE ${SUBJECTS.sessions.row}`)
  ].map(({ mac }) => hex(mac as Buffer))
  t.equal(macs.length, 2)
  for (const [i, [name, statements, ask, refused]] of added.entries()) {
    for (const mac of ['NULL', "sha256('x')", ...macs].filter((_, j) => LONG || j % 2 === i % 2)) {
      total.made++
      const before = await recorded()
      await run(statements(mac))
      const answer = await ask()
      t.ok(refused(answer), `${name} with the MAC ${mac}: ${plain(answer).slice(0, 200)}`)
      const after = await recorded()
      t.ok(after.lines > before.lines, `${name} is told of`)
      await takeBack()
      await test.sql("DELETE FROM organizations WHERE slug = 'x-org'")
    }
  }
})

t.test('a level that was moved, renamed, emptied or rolled back is refused before its ETag is compared', async (t) => {
  const cases: Record<string, string[]> = {
    'the slugs of two projects exchanged': [
      `UPDATE projects SET slug = 'x' WHERE ${SUBJECTS.projects.row}`,
      `UPDATE projects SET slug = '${at.project}' WHERE ${SUBJECTS.projects.another}`
    ],
    'an environment of another target': [
      `DELETE FROM environments WHERE ${SUBJECTS.environments.row}`,
      `UPDATE environments SET project_id = ${project('orbit')}, target_id = ${SUBJECTS.targets.row.replace('id = ', '')} WHERE ${SUBJECTS.environments.another}`
    ],
    'an override set to nothing': [`UPDATE secrets SET sealed = NULL WHERE ${SUBJECTS.secrets.row}`],
    'an override set to nothing, as a delete would': [
      `UPDATE secrets SET sealed = NULL, size_bytes = 0, revision = revision + 1 WHERE ${SUBJECTS.secrets.row}`
    ],
    'a document on another level': [`UPDATE secrets SET level = 'project' WHERE ${SUBJECTS.secrets.row}`],
    'a project of another custody': [`UPDATE projects SET encryption_type = 'client' WHERE ${SUBJECTS.projects.row}`]
  }
  const { etag } = (await nimbus.call('GET', levelPath)).headers
  for (const [name, statements] of Object.entries(cases)) {
    total.made++
    const before = await recorded()
    await run(["SET LOCAL session_replication_role = 'replica'", ...statements])
    const answer = await nimbus.call('GET', levelPath, undefined, { 'if-none-match': String(etag) })
    t.equal(plain(answer), REFUSED, name)
    t.equal((await recorded()).events, before.events + 1, `${name} is recorded`)
    await takeBack()
  }
  // Restores an old row with its valid MAC while a newer version exists. The row is older than the recorded state.
  await nimbus.call('POST', `/${o}/secrets/store`, { ...at, plaintext: 'FROM=now' })
  await takeBack(['secrets'])
  t.equal(
    plain(await nimbus.call('GET', levelPath, undefined, { 'if-none-match': String(etag) })), REFUSED,
    'rolled back, with the ETag of then'
  )
})

t.test('slices that have no form fail no deletion of a level', async (t) => {
  for (const slices of [
    '{}', '[1]', '"x"', 'null', '[{"project_id":{"a":"longer than any id of ours would be"}}]',
    '[{"environment_id":"longer than any id of ours would be"}]'
  ]) {
    const { project } = await makeLevel(nimbus, { slug: 'doomed' })
    await run([
      `INSERT INTO api_tokens (organization_id, name, token_hash, token_prefix, token_suffix, abilities, slices) VALUES ('${o}', 'x', ${hex(hashToken(mintSecret()))}, 'x', '', '{*}', '${slices}')`
    ])
    const { status, text } = await nimbus.call('DELETE', `/${o}/${project}`)
    t.equal(status, 204, `${slices}: ${text}`)
    await takeBack()
  }
})

t.test('at least 200 manipulations were refused, by the service and not by the database alone', async (t) => {
  atLeast200(t)
})
