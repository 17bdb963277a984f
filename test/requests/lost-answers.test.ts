// runs: one database; 25 s
import { once } from 'node:events'
import { request, type IncomingMessage } from 'node:http'
import { connect, createServer, type AddressInfo, type Socket } from 'node:net'
import { setTimeout as pause } from 'node:timers/promises'
import t from 'tap'
import { hashToken } from '../../src/crypto/bearer.ts'
import { startApp } from '../helpers/app.ts'
import { LONG } from '../helpers/long.ts'
import { issuePair, makePerson } from '../helpers/people.ts'
import { random, scale, times } from '../helpers/traffic.ts'

// A proxy cuts connections at random points, and clients repeat requests with an `Idempotency-Key` until they get a
// response. The final data must equal the data in the responses.

const SEED = 17
const CLIENTS = 4
const ROUNDS = LONG ? 20 : scale(3, 2)

const service = await startApp(t)
await service.listen()
const { port } = service.app.server.address() as AddressInfo

/** The number of connections by the part that the proxy cut off; `none` for complete connections. */
const cuts = { request: 0, answer: 0, none: 0 }

/**
 * Starts a proxy to the service. In two of three connections, it forwards only a random part of the request or of the
 * response.
 */
async function startProxy (t: { teardown (fn: () => unknown): void }): Promise<number> {
  const next = random(SEED)
  const open = new Set<Socket>()
  const proxy = createServer((near) => {
    const far = connect(port, '127.0.0.1')
    const close = () => {
      near.destroy()
      far.destroy()
    }
    for (const socket of [near, far]) {
      open.add(socket)
      socket.on('close', () => {
        open.delete(socket)
        close()
      }).on('error', () => {})
    }
    const kind = next()
    const [what, bytes] = kind < 0.15
      ? ['request', Math.floor(next() * 500)] as const
      : kind < 0.65 ? ['answer', Math.floor(next() * next() * 1500)] as const : ['none', Infinity] as const
    cuts[what]++
    const pass = (from: Socket, to: Socket, most: number) => {
      let left = most
      from.on('data', (chunk: Buffer) => {
        // The service has finished its work at this time, even if the proxy forwards nothing of the response.
        if (chunk.length > left) to.write(chunk.subarray(0, left), close)
        else to.write(chunk)
        left -= chunk.length
      })
      from.on('end', () => { to.end() })
    }
    pass(near, far, what === 'request' ? bytes : Infinity)
    pass(far, near, what === 'answer' ? bytes : Infinity)
  }).listen(0, '127.0.0.1')
  await once(proxy, 'listening')
  t.teardown(() => {
    for (const socket of open) socket.destroy()
    proxy.close()
  })
  return (proxy.address() as AddressInfo).port
}

interface Told { status: number, body: any, isReplay: boolean }

/** Sends a request once on a new connection. Throws if the connection ends before the response is complete. */
async function attempt (
  port: number, token: string, path: string, body: object, key: string
): Promise<Told> {
  const sent = request({
    port,
    host: '127.0.0.1',
    agent: false,
    method: 'POST',
    path: `/api/v1${path}`,
    headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json', 'idempotency-key': key }
  })
  const answered = once(sent, 'response')
  sent.on('error', () => {})
  sent.end(JSON.stringify(body))
  const [response] = await answered as [IncomingMessage]
  let text = ''
  for await (const chunk of response) text += String(chunk)
  if (!response.complete) throw new Error('the answer is cut off')
  return {
    status: response.statusCode!,
    body: JSON.parse(text),
    isReplay: response.headers['idempotent-replayed'] === 'true'
  }
}

t.test('behind a proxy that cuts connections no repeat acts twice, and no token exists that no client has', async (t) => {
  const port = await startProxy(t)
  const caller = await service.organization()
  const o = caller.organization
  const founder = await makePerson(service)
  const { access } = await issuePair(service, founder, ['organization:create'])
  let repeats = 0
  let replays = 0
  let keys = 0
  let lost = 0

  /** Repeats a request until a response arrives that belongs to the request itself. */
  async function ask (path: string, body: object, token = caller.token): Promise<Told> {
    const key = `key-${++keys}`
    for (let tries = 1; tries <= 200; tries++) {
      const told = await attempt(port, token, path, body, key).catch(() => undefined)
      if (told !== undefined && told.status !== 503 && told.body.error !== 'conflict') {
        if (told.isReplay) replays++
        return told
      }
      repeats++
      await pause(5)
    }
    throw new Error(`${path}: no answer`)
  }

  async function done (path: string, body: object, token?: string) {
    const { status, body: answer } = await ask(path, body, token)
    if (status >= 300) throw new Error(`${path}: ${status} ${JSON.stringify(answer)}`)
    return answer
  }

  const ROTATES = ['api-token:create', 'api-token:delete']
  const OVERLAP = { overlap_seconds: 600 }
  // Only the lost response contained the token value, so the token gets a new value.
  const values = new Map<string, string>()
  async function tokenOf (path: string, body: object, token?: string): Promise<string> {
    const { status, body: answer } = await ask(path, body, token)
    if (answer.error === 'idempotent_secret_unavailable') {
      lost++
      return tokenOf(`/organizations/${o}/api-keys/${answer.details.id}/rotate`, token === undefined ? {} : OVERLAP, token)
    }
    if (status >= 300) throw new Error(`${path}: ${status} ${JSON.stringify(answer)}`)
    values.set(answer.api_key.id, answer.token)
    return answer.api_key.id
  }

  const told = {
    projects: new Set<string>(),
    targets: new Set<string>(),
    environments: new Set<string>(),
    invitations: new Set<string>(),
    organizations: new Set<string>(),
    keyStrings: new Map<string, string>()
  }
  const events = { 'secret.store': 0, 'secret.restore': 0, 'key.rotate': 0 }

  async function live (client: number) {
    for (const round of times(ROUNDS, (round) => round)) {
      const { data: project } = await done(`/${o}/projects`, { name: 'Orbit' })
      told.projects.add(project.id)
      const { slug } = project.attributes
      told.targets.add((await done(`/${o}/${slug}/targets`, { name: 'Backend' })).data.id)
      told.environments.add((await done(`/${o}/${slug}/backend/environments`, { name: 'Live' })).data.id)
      const level = { project: slug, target: 'backend', environment: 'live' }
      const { data: { version } } = await done(`/${o}/secrets/store`, { ...level, plaintext: 'A=1' })
      await done(`/${o}/secrets/store`, { ...level, plaintext: 'A=2' })
      events['secret.store'] += 2
      await done(`/${o}/secrets/versions/${version}/restore`, {})
      events['secret.restore']++
      const { data: { key } } = await done(`/${o}/${slug}/encryption-key/rotate`, {})
      told.keyStrings.set(slug, key.attributes.key)
      events['key.rotate']++
      const id = await tokenOf(`/organizations/${o}/api-keys`, { name: 'CI', abilities: ['secret:read'] })
      await tokenOf(`/organizations/${o}/api-keys/${id}/rotate`, {})
      // A token that rotates itself. It uses its old value until the response contains the new value.
      const itself = await tokenOf(`/organizations/${o}/api-keys`, { name: 'Itself', abilities: ROTATES })
      await tokenOf(`/organizations/${o}/api-keys/${itself}/rotate`, OVERLAP, values.get(itself))
      const email = `rosa-${client}-${round}@nimbus.example`
      told.invitations.add((await done(`/organizations/${o}/members`, { email, role: 'member' })).data.id)
      // If two requests need the same slug at the same time, the second one gets an error.
      const name = `Nimbus ${client} ${round}`
      told.organizations.add((await done('/organizations', { name }, access)).data.id)
    }
  }
  await Promise.all(times(CLIENTS, live))

  const idsOf = async (sql: string) => (await service.sql(sql)).map(({ id }) => String(id)).sort()
  const sorted = (all: Iterable<string>) => [...all].sort()
  for (const table of ['projects', 'targets', 'environments', 'invitations'] as const) {
    t.strictSame(await idsOf(`SELECT id FROM ${table} WHERE organization_id = '${o}'`), sorted(told[table]), table)
  }
  t.strictSame(
    await idsOf(`SELECT organization_id AS id FROM members WHERE user_id = ${founder.id}`), sorted(told.organizations)
  )
  for (const [action, count] of Object.entries(events)) {
    const [row] = await service.sql(
      `SELECT count(*) FROM audit_events WHERE organization_id = '${o}' AND action = '${action}'`
    )
    t.equal(Number(row!.count), count, action)
  }
  for (const [slug, keyString] of told.keyStrings) {
    const { body } = await caller.call('GET', `/${o}/${slug}/encryption-key`)
    t.strictSame([body.data.attributes.version, body.data.attributes.key], [2, keyString], `the key of ${slug}`)
  }
  const tokens = await service.sql(`SELECT id, encode(token_hash, 'hex') AS hash FROM api_tokens
    WHERE organization_id = '${o}' AND name IN ('CI', 'Itself')`)
  t.equal(tokens.length, 2 * CLIENTS * ROUNDS, 'as many tokens as were asked for')
  for (const { id, hash } of tokens) {
    t.equal(hash, hashToken(values.get(String(id)) ?? '').toString('hex'), `token ${id} is had by who asked for it`)
  }
  const former = await service.sql(`SELECT t.name FROM former_token_hashes f
    JOIN api_tokens t ON t.organization_id = f.organization_id AND t.id = f.token_id WHERE f.organization_id = '${o}'`)
  t.equal(former.filter(({ name }) => name !== 'Itself').length, 0, 'and has no other value')
  t.equal(former.length, CLIENTS * ROUNDS, 'but those that rotated themselves, the one by which they did')

  t.comment(JSON.stringify({ cuts, keys, repeats, replays, lost }))
  for (const what of ['request', 'answer', 'none'] as const) t.not(cuts[what], 0, `${what}: some were cut off there`)
  t.not(replays, 0, 'some answers were given again')
  t.not(lost, 0, 'some values were lost')
})
