// runs: one database; 40 s
import { createHook } from 'node:async_hooks'
import t, { type Test } from 'tap'
import { openBlob, sealBlob } from '../../src/crypto/blob.ts'
import { COSTS } from '../../src/crypto/costs.ts'
import { makeProof } from '../../src/crypto/key-proof.ts'
import { secretKey } from '../../src/crypto/primitives.ts'
import { clientKey, type ClientKey } from '../helpers/client.ts'
import { startIsolatedApp } from '../helpers/app.ts'
import { QUICK, SLOW } from '../helpers/costs.ts'
import { LONG } from '../helpers/long.ts'
import { startServer } from '../helpers/process.ts'
import {
  dataKeyOf, failedInside, makeLevels, operate, openWith, random, replay, rotate, scale, startInstances, statuses,
  store, times,
  type Level, type Operation, type Reply, type Send
} from '../helpers/traffic.ts'
import { until } from '../helpers/until.ts'

t.setTimeout(240_000)

const ROTATIONS = LONG ? 8 : 3
const CLIENTS = LONG ? 20 : 8
const WRITES = 3

const instances = await startInstances(t)
/** The two instances with these costs of a key derivation, and a new organization for the test. */
const startTenant = async (costs = QUICK) => {
  for (const app of instances.apps) app.costs = costs
  return { ...instances, ...await instances.tenant() }
}

type Running = Awaited<ReturnType<typeof startTenant>>
type Document = { id: string, content: string, key_version: string, etag: string, version: string | null }

const pathOf = ({ project, target, environment }: Level) =>
  ['', project, target, environment].filter((part) => part !== undefined).join('/')
const kindOf = ({ target, environment }: Level) =>
  environment !== undefined ? 'environment' : target !== undefined ? 'target' : 'project'
const documentsOf = (answer: Reply) => answer.body.data.attributes.levels as Record<string, Document>

/** Wraps the clients. Records every response of 500 and above, and every request without a response. */
function watched (running: Running) {
  const failures: unknown[] = []
  const watch = (send: Send): Send => async (method, path, body, headers) => {
    try {
      const answer = await send(method, path, body, headers)
      if (answer.status >= 500) failures.push([method, path, answer.status, answer.body])
      return answer
    } catch (error) {
      failures.push([method, path, String(error)])
      throw error
    }
  }
  return { failures, send: watch(running.send), sends: running.sends.map(watch) }
}

/** Waits until no version is left to move to the active key. */
async function settled (send: Send, project: string) {
  const history = async () => (await send('GET', `/${project}/encryption-key/history`)).body
  await until(async () => (await history()).re_encryption?.state !== 'running', { within: 120_000 })
}

/** Checks that readers get every version of the model, and that its key decrypts the version to the written content. */
async function agree (
  t: Test, { service, organization }: Running, send: Send, operations: Operation[],
  open: (blob: string, version: string) => string
) {
  const { problems, secrets } = await replay((query) => service.sql(query), organization, operations)
  t.same(problems, [])
  let acknowledged = 0
  const wrong: unknown[] = []
  const held = new Map([...secrets.values()].flatMap(({ versions }) => [...versions]))
  for (const [id, { plaintext }] of held) {
    const { status, body } = await send('GET', `/secrets/versions/${id}`)
    const { content, key, attributes } = body.data ?? {}
    if (status !== 200 || key.version !== attributes.key_version || open(content, key.version) !== plaintext) {
      wrong.push([id, plaintext, status])
    }
  }
  for (const { kind, plaintext, reply } of operations) {
    if (kind !== 'store' || reply?.status !== 200) continue
    acknowledged++
    if (held.get(Number(reply.body.data.version))?.plaintext !== plaintext) {
      wrong.push([reply.body.data.version, plaintext, 'acknowledged'])
    }
  }
  t.same(wrong, [], 'every acknowledged write is in the history, and every version holds what was written')
  t.ok(acknowledged > 0)
  for (const secret of secrets.values()) {
    const document = documentsOf(await send('GET', `${pathOf(secret.level)}/secrets`))[kindOf(secret.level)]
    t.equal(
      document && open(document.content, document.key_version), secret.plaintext,
      'the document is that of the last write'
    )
  }
  t.same(failedInside(service), [], 'nothing failed inside')
}

t.test(`S-6.2 S-6.6: ${ROTATIONS} rotations: a read document opens with its key version; no write is lost`, async (t) => {
  const running = await startTenant(SLOW)
  const { failures, send, sends } = watched(running)
  const levels = await makeLevels(send, 'orbit', ['live', 'test'])
  const operations: Operation[] = []
  const seen: number[] = []
  // The responses to readers. The test decrypts them after the last rotation, when it knows all keys.
  const given: { from: string, level: Level, content: string, key_version: string }[] = []
  const plain: { level: Level, content: string }[] = []
  const keys = new Map<string, Buffer>()
  const know = (
    { version, ...key }: { version: string | number, key: string, key_check_salt: string, key_check_iterations: number }
  ) => {
    if (!keys.has(String(version))) keys.set(String(version), dataKeyOf(key))
    return keys.get(String(version))!
  }
  const fetchKey = async () => know((await send('GET', '/orbit/encryption-key')).body.data.attributes)
  const refusedContent: Reply[] = []
  const done = async (operation: Operation) => {
    operations.push(operation)
    const version = Number(operation.reply?.body?.data?.version)
    if (version > 0) seen.push(version)
    return operation
  }
  for (const [index, level] of levels.entries()) await done(await store(send, level, `VALUE=first-${index}`))

  const storeContent = async (level: Level, plaintext: string, key: Buffer): Promise<Buffer> => {
    const content = sealBlob(secretKey(Buffer.from(key)), plaintext)
    const { reply } = await done(await operate(
      send, level, 'store', 'POST', '/secrets/store', { ...level, content }, plaintext
    ))
    if (reply?.status === 200) return key
    refusedContent.push(reply!)
    return storeContent(level, plaintext, await fetchKey())
  }
  const readLevels = async (level: Level, query = '') => {
    const answer = await send('GET', `${pathOf(level)}/secrets${query}`)
    t.equal(answer.status, 200)
    return Object.entries(documentsOf(answer)).map(([kind, document]) =>
      ({ document, level: kind === 'environment' ? level : levels.find((one) => kindOf(one) === kind)! }))
  }

  const readsUnder = (version: number) =>
    given.some(({ from, key_version }) => from === 'a read' && key_version === String(version))
  const state = { rotating: true, busy: true }
  const clients = times(CLIENTS, async (number) => {
    const next = random(number)
    const pick = <T>(list: T[]) => list[Math.floor(next() * list.length)]!
    let key = await fetchKey()
    for (let turn = 0; state.rotating && turn < 500; turn++) {
      const level = pick(levels)
      const value = `VALUE=${number}-${turn}`
      const dice = next()
      if (dice < 0.15) await done(await store(send, level, value))
      else if (dice < 0.35) key = await storeContent(level, value, key)
      else if (dice < 0.60) {
        for (const { document, level: at } of await readLevels(level)) {
          given.push({ from: 'a read', level: at, ...document })
        }
      } else if (dice < 0.75) {
        for (const { document, level: at } of await readLevels(level, '?decrypt=true')) {
          plain.push({ level: at, content: document.content })
        }
      } else if (dice < 0.90) {
        const { status, body } = await send('GET', `/secrets/versions/${pick(seen)}`)
        t.equal(status, 200)
        given.push({ from: 'a version', level, content: body.data.content, key_version: body.data.key.version })
        t.equal(body.data.attributes.key_version, body.data.key.version)
      } else await done(await operate(send, level, 'restore', 'POST', `/secrets/versions/${pick(seen)}/restore`, {}))
    }
  })
  const end = () => { state.busy = false }
  Promise.all(clients).then(end, end)

  let single = 0
  for (let round = 1, version = 1; round <= ROTATIONS; round++) {
    const policy = round % 2 === 0 ? 're_encrypt' : 'keep'
    // Sends two rotations at the same time, on both instances if there are two. Both begin before one can end, because
    // each must derive a key.
    const both = round % 2 === 1
    const rotations = await Promise.all((both ? [sends[0]!, sends.at(-1)!] : [send]).map((through) =>
      rotate(through, levels[0]!, policy)))
    operations.push(...rotations)
    for (const { reply } of rotations) {
      if (reply?.status === 200) {
        t.equal(know(reply.body.data.key.attributes), keys.get(String(++version)), 'the next key')
      } else t.match(reply, { status: 409, body: { error: 'key_version_conflict' } })
    }
    const won = rotations.filter(({ reply }) => reply?.status === 200).length
    if (both) t.equal(won, 1, 'of two rotations at once one gives 200 and one 409')
    else single += won
    // Waits for a reader that uses this key, so that the next rotation always overlaps with readers.
    await until(() => !state.busy || readsUnder(version), { every: 5 })
  }
  state.rotating = false
  await Promise.all(clients)
  t.ok(single > 0, 'a rotation gets through the writes')
  t.same(failures, [], 'no answer is missing, none is 500 or above')
  t.same(
    [...new Set(refusedContent.map(({ status, body }) => `${status} ${body.error}`))], ['422 content_not_decryptable'],
    'content under an older key was refused, and nothing else'
  )

  const written = new Set(operations.map(({ plaintext }) => plaintext))
  const astray = given.filter(({ content, key_version }) => {
    try {
      return !written.has(openWith(keys.get(key_version)!, content))
    } catch {
      return true
    }
  })
  t.same(astray, [], `${given.length} documents and versions open with the key that they name`)
  t.ok(
    new Set(given.filter(({ from }) => from === 'a read').map(({ key_version }) => key_version)).size > 2,
    'reads saw several keys'
  )
  const sent = (level: Level, content: string) => operations.some((one) =>
    one.plaintext === content && (one.level === level || operations.some(({ kind }) => kind === 'restore')))
  t.same(plain.filter(({ level, content }) => !sent(level, content)), [], 'decrypted reads give what a client wrote')
  await settled(send, 'orbit')
  await agree(t, running, send, operations, (blob, version) => openWith(keys.get(version)!, blob))
})

t.test('of two rotations of the same key one is 200, one 409 key_version_conflict and leaves nothing behind', async (t) => {
  // The derivation is slow, so the other rotations see the same active key.
  const running = await startTenant(SLOW)
  const { service, sends } = running
  const levels = await makeLevels(running.send, 'orbit', ['live'])
  const operations = []
  for (const level of levels) operations.push(await store(running.send, level, 'A=1'))
  for (let round = 1; round <= 4; round++) {
    const rotations = await Promise.all([sends[0]!, sends.at(-1)!, sends[0]!].map((through) =>
      rotate(through, levels[0]!, 'keep')))
    operations.push(...rotations)
    t.same(rotations.map(({ reply }) => reply!.status).sort(), [200, 409, 409])
    t.same(
      rotations.filter(({ reply }) => reply!.status === 409).map(({ reply }) => reply!.body.error),
      ['key_version_conflict', 'key_version_conflict']
    )
  }
  t.same(await service.sql(
    `SELECT version, is_active, rotated_at IS NULL AS current FROM encryption_keys
      WHERE organization_id = '${running.organization}' ORDER BY version`
  ),
  times(5, (index) => ({ version: index + 1, is_active: index === 4, current: index === 4 })))
  t.same((await replay((query) => service.sql(query), running.organization, operations)).problems, [])
})

t.test('S-6.6: a first store that races a rotation is under the new key, or came before the rotation', async (t) => {
  const running = await startTenant()
  const { failures, send, sends } = watched(running)
  const [level] = await makeLevels(send, 'orbit', ['live'])
  const operations: Operation[] = []
  for (let round = 1; round <= (LONG ? scale(10, 4) : 3); round++) {
    const state = { rotating: true }
    const rotation = rotate(sends[0]!, level!, 'keep').finally(() => { state.rotating = false })
    // In half of the time the level has no document, so the rotation cannot increase its revision.
    while (state.rotating) {
      operations.push(await store(sends.at(-1)!, level!, `VALUE=${operations.length}`))
      operations.push(await operate(sends.at(-1)!, level!, 'delete', 'POST', '/secrets/delete', { ...level }))
    }
    operations.push(await rotation)
    t.equal(operations.at(-1)!.reply!.status, 200)
  }
  t.same(statuses(operations.map(({ reply }) => reply)), [200, 204])
  t.same((await replay((query) => running.service.sql(query), running.organization, operations)).problems, [])
  t.same(failures, [])
})

const triple = ({ registration: { storage_mode: _, ...rest } }: ClientKey) => rest

t.test(`S-6.2 S-6.6: ${ROTATIONS} rotations by a client overwrite no write that they did not see`, async (t) => {
  const running = await startTenant()
  const { failures, send, sends } = watched(running)
  const keys = new Map([['1', await clientKey('key string 1')]])
  const levels = await makeLevels(send, 'orbit', ['live', 'test'], keys.get('1')!.registration)
  const operations: Operation[] = []
  const given: { content: string, key_version: string }[] = []
  const open = (blob: string, version: string) => openBlob(keys.get(version)!.dataKey, blob)!.toString()
  const write = async (level: Level, plaintext: string, version: string) => {
    const { dataKey, proof } = keys.get(version)!
    const operation = await operate(
      send, level, 'store', 'POST', '/secrets/store',
      { ...level, content: sealBlob(dataKey, plaintext), key_proof: proof }, plaintext
    )
    operations.push(operation)
    return operation.reply!
  }
  for (const [index, level] of levels.entries()) await write(level, `VALUE=first-${index}`, '1')

  // The key that all clients use. It changes when a rotation is acknowledged.
  const state = { agreed: '1', rotations: 0 }
  const answers: string[] = []
  const clients = times(CLIENTS, async (number) => {
    const next = random(100 + number)
    let known = '1'
    for (let turn = 0, writes = 0; state.rotations < ROTATIONS; turn++) {
      const level = levels[Math.floor(next() * levels.length)]!
      const dice = next()
      // Limits the writes between two rotations, so that each rotation eventually succeeds.
      if (dice < 0.5 && writes < WRITES * (state.rotations + 1)) {
        writes++
        const { status, body } = await write(level, `VALUE=${number}-${turn}`, known)
        answers.push(`${status} ${body.error ?? ''}`)
        if (status === 422) known = state.agreed
      } else if (dice < 0.55 && writes < WRITES * (state.rotations + 1)) {
        writes++
        operations.push(await operate(send, level, 'delete', 'POST', '/secrets/delete', { ...level }))
      } else given.push(...Object.values(documentsOf(await send('GET', `${pathOf(level)}/secrets`))))
    }
  })
  const refusals: string[] = []
  for (let attempt = 0; state.rotations < ROTATIONS; attempt++) {
    const through = sends[attempt % sends.length]!
    const version = String(state.rotations + 2)
    const fresh = keys.get(version) ?? await clientKey(`key string ${version}`)
    keys.set(version, fresh)
    const documents = new Map<string, Document>()
    for (const level of levels.filter(({ environment }) => environment !== undefined)) {
      for (const document of Object.values(documentsOf(await through('GET', `${pathOf(level)}/secrets`)))) {
        documents.set(document.id, document)
      }
    }
    const secrets = [...documents.values()].map(({ id, content, key_version, etag }) =>
      ({ id, content: sealBlob(fresh.dataKey, open(content, key_version)), etag }))
    // So that the first rotation surely meets a write that it has not seen.
    if (attempt === 0) await write(levels.at(-1)!, 'VALUE=unseen', '1')
    const operation = await operate(
      through, levels[0]!, 'rotate', 'POST', '/orbit/secrets/rotate-client-keys',
      { secrets, ...triple(fresh), history_policy: 'keep' }
    )
    operations.push(operation)
    const { status, body } = operation.reply!
    if (status === 200) {
      t.equal(body.data.count, secrets.length)
      state.rotations++
      state.agreed = version
    } else refusals.push(`${status} ${body.error}`)
  }
  await Promise.all(clients)
  t.same(failures, [], 'no answer is missing, none is 500 or above')
  t.same([...new Set(refusals)].filter((refusal) =>
    !['412 precondition_failed', '422 secrets_incomplete', '409 key_version_conflict'].includes(refusal)), [])
  t.ok(
    refusals.includes('412 precondition_failed') || refusals.includes('422 secrets_incomplete'),
    'a rotation met a write that it had not seen'
  )
  t.same([...new Set(answers)].sort(), ['200 ', '422 key_proof_mismatch'])
  t.same(
    given.filter(({ content, key_version }) => openBlob(keys.get(key_version)!.dataKey, content) === undefined), [],
    `${given.length} documents open with the key that they name`
  )
  await agree(t, running, send, operations, open)

  await t.test('two clients re-encrypt the history at once: each version moves once, and `remaining` never grows', async (t) => {
    const where = `WHERE v.organization_id = '${running.organization}'`
    const [before] = await running.service.sql(
      `SELECT count(*)::int AS count FROM secret_versions v ${where} AND v.key_version < ${state.agreed}`
    )
    const { dataKey, proof } = keys.get(state.agreed)!
    const moved: number[] = []
    await Promise.all([scale(7, 25), scale(11, 40)].map(async (limit, index) => {
      const through = sends[index % sends.length]!
      const left = { versions: Infinity }
      const less = (remaining: number) => {
        t.ok(remaining <= left.versions, `${remaining} after ${left.versions}`)
        left.versions = remaining
      }
      while (left.versions > 0) {
        const { status, body } = await through('POST', '/orbit/secrets/re-encrypt-history/pending', { limit })
        t.equal(status, 200)
        less(body.meta.remaining)
        if (body.data.length === 0) continue
        const versions = body.data.map(({ id, content, key_version }: any) =>
          ({ id, content: sealBlob(dataKey, open(content, key_version)) }))
        const answer = await through('POST', '/orbit/secrets/re-encrypt-history', { versions, key_proof: proof })
        if (answer.status === 200) {
          t.equal(answer.body.data.updated, versions.length)
          less(answer.body.data.remaining)
          moved.push(...versions.map(({ id }: { id: number }) => id))
        } else t.match(answer, { status: 422, body: { error: 'key_version_conflict' } })
      }
    }))
    t.equal(moved.length, before!.count as number)
    t.equal(new Set(moved).size, moved.length)
    const [events] = await running.service.sql(
      `SELECT sum((details->>'versions')::int)::int AS count FROM audit_events v ${where} AND action = 'history.re_encrypt'`
    )
    t.equal(events!.count, before!.count)
    await agree(t, running, send, operations, open)
    t.same(
      await running.service.sql(`SELECT DISTINCT key_version FROM secret_versions v ${where}`),
      [{ key_version: Number(state.agreed) }]
    )
    t.same(failures, [])
  })
})

t.test('CR-27: once a change of custody is acknowledged no instance decrypts or takes plaintext', async (t) => {
  const running = await startTenant()
  const { failures, sends } = watched(running)
  const { service, organization } = running
  const levels = await makeLevels(sends[0]!, 'orbit', ['live'])
  const { attributes } = (await sends[0]!('GET', '/orbit/encryption-key')).body.data
  const { key, key_check_salt, key_check_iterations } = attributes
  const dataKey = secretKey(dataKeyOf(attributes))
  const key_check = await makeProof(key, Buffer.from(key_check_salt, 'base64'), key_check_iterations)
  const toClient = { storage_mode: 'client', key_check, key_check_salt, key_check_iterations, key_proof: key_check }
  const toServer = { storage_mode: 'server', encryption_key: key }
  for (const level of levels) await store(sends[0]!, level, 'VALUE=first')

  for (let round = 1; round <= (LONG ? 3 : 1); round++) {
    const acknowledged = { yet: false }
    const late: string[] = []
    const early: string[] = []
    const kept: { request: string, plaintext: string }[] = []
    let after = 0
    const clients = times(CLIENTS, async (number) => {
      const through = sends[number % sends.length]!
      const level = levels[number % levels.length]!
      for (let turn = 0; after < 40 && turn < 500; turn++) {
        const began = acknowledged.yet
        let answer: Reply
        if (turn % 2 === 0) {
          const operation = await store(through, level, `VALUE=${round}-${number}-${turn}`)
          answer = operation.reply!
          if (answer.status === 200) kept.push({ request: operation.request, plaintext: operation.plaintext! })
        } else answer = await through('GET', `${pathOf(level)}/secrets?decrypt=true`)
        ;(began ? late : early).push(`${answer.status} ${answer.body.error ?? ''}`)
        if (began) after++
      }
    })
    await until(() => early.length >= 2 * CLIENTS, { every: 0 })
    const changed = await sends[0]!('PATCH', '/orbit', toClient)
    acknowledged.yet = true
    t.equal(changed.status, 200)
    await Promise.all(clients)
    t.ok(late.length >= 40)
    t.same(
      [...new Set(late)], ['422 client_managed_encryption'],
      'afterwards every read and store on every instance is refused'
    )
    t.same([...new Set(early)].filter((one) => !['200 ', '422 client_managed_encryption'].includes(one)), [])

    const [change] = await service.sql(
      `SELECT max(seq) AS seq FROM audit_events WHERE organization_id = '${organization}' AND action = 'key.change_custody'`
    )
    const stores = await service.sql(
      `SELECT request_id, seq FROM audit_events WHERE organization_id = '${organization}' AND action = 'secret.store' AND request_id IN (${kept.map(({ request }) => `'${request}'`).join()})`
    )
    t.equal(stores.length, kept.length, 'every acknowledged store is there')
    t.ok(stores.every(({ seq }) => Number(seq) < Number(change!.seq)), 'and came before the change')
    t.same(
      await service.sql(`SELECT key_string, data_key FROM encryption_keys WHERE organization_id = '${organization}'`), [{ key_string: null, data_key: null }]
    )

    for (const through of sends) {
      for (const level of levels) {
        const content = sealBlob(dataKey, `VALUE=client-${round}`)
        t.equal((await through('POST', '/secrets/store', { ...level, content, key_proof: key_check })).status, 200)
        t.equal(documentsOf(await through('GET', `${pathOf(level)}/secrets`))[kindOf(level)]!.content, content)
      }
    }
    t.equal((await sends.at(-1)!('PATCH', '/orbit', toServer)).status, 200)
    for (const through of sends) {
      t.equal(
        documentsOf(await through('GET', `${pathOf(levels[0]!)}/secrets?decrypt=true`)).environment!.content,
        `VALUE=client-${round}`, 'given back, every instance opens it'
      )
    }
  }
  t.same(failures, [])
  t.same(statuses(await Promise.all(sends.map((through) => through('GET', '/orbit')))), [200])
})

t.test('CR-16: of 100 requests at once that each derive a key two do so at a time, others queue or get 503', async (t) => {
  const { service, send, sendOnce, organization } = await startTenant(LONG ? COSTS : SLOW)
  const [level] = await makeLevels(send, 'orbit', ['live'])
  await store(send, level!, 'A=1')
  const running = new Set<number>()
  const most = { running: 0 }
  const hook = createHook({
    init (id, type) {
      if (type !== 'PBKDF2REQUEST') return
      running.add(id)
      most.running = Math.max(most.running, running.size)
    },
    before (id) { running.delete(id) }
  }).enable()
  const order: string[] = []
  const ended = async (name: string, answer: Promise<Reply>) => {
    const { status } = await answer
    order.push(name)
    return status
  }
  const derivations = times(100, (index) => ended('derivation', index % 10 === 0
    ? sendOnce('POST', '/orbit/encryption-key/rotate')
    : sendOnce('POST', '/projects', { name: 'Cold', slug: `cold-${index}` })))
  await until(() => running.size > 0, { every: 0 })
  const others = [
    ended('health', send('GET', '//healthz')), ended('read', send('GET', `${pathOf(level!)}/secrets?decrypt=true`)),
    ended('write', store(send, level!, 'A=2').then(({ reply }) => reply!))
  ]
  t.same(await Promise.all(others), [200, 200, 200])
  const answers = await Promise.all(derivations)
  hook.disable()
  t.equal(most.running, 2, 'two derivations at a time')
  t.same([...new Set(answers)].filter((status) => ![200, 201, 409, 503].includes(status)), [])
  const count = (status: number) => answers.filter((one) => one === status).length
  t.ok(count(201) > 0 && count(503) > 0, `${count(201)} made, ${count(503)} told to come back`)
  for (const name of ['health', 'read', 'write']) {
    t.ok(order.indexOf(name) < order.lastIndexOf('derivation') - 10, `${name} did not wait for the queue`)
  }

  const own = `p.organization_id = '${organization}'`
  const [left] = await service.sql(`SELECT (SELECT count(*) FROM projects p WHERE ${own} AND slug LIKE 'cold-%')::int AS projects,
    (SELECT count(*) FROM encryption_keys k JOIN projects p ON (p.organization_id, p.id) = (k.organization_id, k.project_id) WHERE ${own} AND p.slug LIKE 'cold-%' AND k.is_active)::int AS keys,
    (SELECT count(*) FROM encryption_keys k JOIN projects p ON (p.organization_id, p.id) = (k.organization_id, k.project_id) WHERE ${own} AND p.slug = 'orbit')::int AS rotated,
    (SELECT count(*) FROM audit_events WHERE organization_id = '${organization}' AND action = 'project.create')::int AS events`)
  t.same(
    left, { projects: count(201), keys: count(201), rotated: 1 + count(200), events: 1 + count(201) },
    'nothing is left half-made'
  )
  t.equal((await send('POST', '/projects', { name: 'Warm' })).status, 201, 'and the queue is open again')
  t.equal(documentsOf(await send('GET', `${pathOf(level!)}/secrets?decrypt=true`)).environment!.content, 'A=2')
})

t.test('CR-16: an organization derives one key at a time for its projects, so another one need not wait', async (t) => {
  const { send } = await startTenant(SLOW)
  const { send: sendOther } = await startTenant(SLOW)
  const order: string[] = []
  const create = async (as: string, through: Send) => {
    const { status } = await through('POST', '/projects', { name: as })
    order.push(as)
    return status
  }
  const burst = times(30, () => create('burst', send))
  const other = [create('other', sendOther), create('other', sendOther)]
  t.same(await Promise.all(other), [201, 201])
  t.ok(order.filter((as) => as === 'burst').length < 15, `before the other organization: ${order.length - 2}`)
  t.same(await Promise.all(burst), burst.map(() => 201))
})

t.test('the creation of a project that is repeated ten times at once derives one key', async (t) => {
  const { sendOnce, service } = await startTenant(SLOW)
  const derived = { count: 0 }
  const hook = createHook({ init: (_, type) => { if (type === 'PBKDF2REQUEST') derived.count++ } }).enable()
  const organization = await service.organization()
  const create = () => organization.call(
    'POST', `/${organization.organization}/projects`, { name: 'Repeated' }, { 'idempotency-key': 'creation' }
  )
  const answers = await Promise.all(times(10, create))
  const before = derived.count
  const replayed = await create()
  hook.disable()
  t.strictSame([before, derived.count], [1, 1])
  const made = answers.filter(({ status }) => status === 201)
  t.same([...new Set([...made, replayed].map(({ text }) => text))], [replayed.text])
  t.same([...new Set(answers.filter(({ status }) => status !== 201).map(({ body }) => body.error))], ['conflict'])
  t.equal((await sendOnce('POST', '/projects', { name: 'Other' })).status, 201)
})

t.test('a rotation that is repeated many times, at two processes at once, is done once, and derives one key', async (t) => {
  // This test has its own database, because it looks at the keys of all organizations.
  const service = await startIsolatedApp(t, {}, SLOW)
  const caller = await service.organization()
  t.equal((await caller.call('POST', `/${caller.organization}/projects`, { name: 'Orbit' })).status, 201)
  await caller.call('POST', `/${caller.organization}/secrets/store`, { project: 'orbit', plaintext: 'A=1' })
  const path = `/${caller.organization}/orbit/encryption-key/rotate`
  const headers = { 'idempotency-key': 'rotation-1' }
  // On PostgreSQL, uses a second process. With the embedded database, one process serves all requests.
  const other = service.env['DATABASE_URL'] === undefined ? undefined : await startServer(t, service.env)
  const elsewhere = async () => {
    const answer = await fetch(`${other!.address}/api/v1${path}`, {
      method: 'POST',
      headers: { ...headers, authorization: `Bearer ${caller.token}`, 'content-type': 'application/json' },
      body: '{}'
    })
    const text = await answer.text()
    return { status: answer.status, text, body: JSON.parse(text) }
  }
  const derived = { count: 0 }
  const hook = createHook({ init: (_, type) => { if (type === 'PBKDF2REQUEST') derived.count++ } }).enable()
  const rotation = (other === undefined ? caller.call('POST', path, {}, headers) : elsewhere())
  if (other !== undefined) {
    // The first request runs in the other process. It is in its transaction and derives the key.
    const locked = () => service.sql(`SELECT 1 FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
      WHERE c.relname = 'long_operations' AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
    await until(async () => (await locked()).length > 0, { every: 0 })
  }
  const repeats = await Promise.all(times(LONG ? 29 : 9, (index) =>
    other === undefined || index % 2 === 0 ? caller.call('POST', path, {}, headers) : elsewhere()))
  const answers = [await rotation, ...repeats]
  hook.disable()
  const done = answers.filter(({ status }) => status === 200)
  t.equal(new Set(done.map(({ text }) => text)).size, 1, `${done.length} have the first answer`)
  const others = answers.filter(({ status }) => status !== 200).map(({ status, body }) => `${status} ${body.error}`)
  t.same([...new Set(others)].filter((error) => error !== '409 conflict'), [])
  t.equal(derived.count, other === undefined ? 1 : 0, 'no repeat derives a key in this process')
  t.same(await service.sql('SELECT count(*)::int AS keys, max(version) AS newest FROM encryption_keys'), [
    { keys: 2, newest: 2 }
  ])
})
