import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { once } from 'node:events'
import { request as httpRequest } from 'node:http'
import t from 'tap'
import { SCOPE_NAMES } from '../schemas/scopes.ts'
import { buildApp } from '../src/app.ts'
import { hashToken, mintCredential } from '../src/crypto/bearer.ts'
import { createGrant, createPair, revokeGrant } from '../src/repositories/oauth.ts'
import { setDisabled } from '../src/repositories/users.ts'
import { startApp } from './helpers/app.ts'
import { fingerprint, OPERATIONS, READS, requestOf, settle, type Row } from './helpers/operations.ts'
import { makePerson } from './helpers/people.ts'

// Whoever ends while a request is under way: the guard has let them in by the headers, and the body comes afterwards.

const service = await startApp(t)
const { caller: nimbus, ids } = await settle(service, 'ours')
const o = nimbus.organization
const rosa = await makePerson(service, { [o]: 'owner' })

/** The service once more on the same database, with its own idea of how long a judgement holds. */
async function listening (judgedFor: number): Promise<string> {
  const app = await buildApp({ config: service.config, database: service.database, keyring: service.keyring, costs: service.app.costs, logStream: { write: () => {} }, judgedFor })
  t.teardown(() => app.close())
  return app.listen({ host: '127.0.0.1', port: 0 })
}

async function accessToken () {
  const [access, refresh] = [mintCredential('at'), mintCredential('rt')]
  const grant = await createGrant(service.database.db, { user_id: rosa.id, client_id: 'dotenv-cli', scopes: [...SCOPE_NAMES] })
  await createPair(service.database.db, { grant_id: grant, access_hash: hashToken(access), refresh_hash: hashToken(refresh), scopes: [...SCOPE_NAMES] })
  return { token: access, grant }
}

interface Ending { token: string, end: () => Promise<unknown>, undo?: () => Promise<unknown> }

const ENDINGS: Record<string, () => Promise<Ending>> = {
  'an API token that is deleted': async () => {
    const { token } = await service.token(o, ['*'])
    return { token, end: () => service.sql(`DELETE FROM api_tokens WHERE token_hash = '\\x${hashToken(token).toString('hex')}'`) }
  },
  'an API token that expires': async () => {
    const { token } = await service.token(o, ['*'])
    return { token, end: () => service.sql(`UPDATE api_tokens SET expires_at = now() WHERE token_hash = '\\x${hashToken(token).toString('hex')}'`) }
  },
  'somebody whose account is closed': async () => ({
    token: (await accessToken()).token, end: () => setDisabled(service.database.db, rosa.id, true), undo: () => setDisabled(service.database.db, rosa.id, false)
  }),
  'an application whose grant is revoked': async () => {
    const { token, grant } = await accessToken()
    return { token, end: () => revokeGrant(service.database.db, grant) }
  },
  'a member whose role changes': async () => ({
    token: (await accessToken()).token,
    end: () => service.sql(`UPDATE members SET role = 'auditor' WHERE organization_id = '${o}'`),
    undo: () => service.sql(`UPDATE members SET role = 'owner' WHERE organization_id = '${o}'`)
  })
}

/** Sends a request whose body ends only after `meanwhile`, which begins when the guard has let the request in. */
async function heldOpen (address: string, row: Row, token: string, meanwhile: () => Promise<unknown>): Promise<{ status: number, body: any, challenge: string }> {
  const { method, url, payload } = requestOf(row, ids)
  const text = JSON.stringify(payload ?? {})
  const judged = new Promise<void>((resolve) => {
    const listen = (message: unknown) => {
      const { phase, text } = message as { phase: string, text: string }
      if (phase !== 'after' || !/from "(api_tokens|oauth_tokens)"/.test(text)) return
      unsubscribe('strongroom:statement', listen)
      resolve()
    }
    subscribe('strongroom:statement', listen)
  })
  const request = httpRequest(new URL(url, address), {
    method, headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) }
  })
  request.write(text.slice(0, 1))
  await judged
  await meanwhile()
  request.end(text.slice(1))
  const [answer] = await once(request, 'response')
  let received = ''
  for await (const chunk of answer) received += chunk
  return { status: answer.statusCode, body: received === '' ? undefined : JSON.parse(received), challenge: answer.headers['www-authenticate'] ?? '' }
}

t.test('a revoked caller changes nothing, also when its body arrives late: every change holds its caller until it commits', async (t) => {
  // Only the transactions judge here: the guard's judgement would hold for ever.
  const address = await listening(Infinity)
  const changes = Object.entries(OPERATIONS).filter(([id, { at, access }]) => access !== 'public' && !at.startsWith('GET ') && !READS.includes(id))
  t.ok(changes.length >= 22, `${changes.length} operations that change something`)
  for (const [who, make] of Object.entries(ENDINGS)) {
    const wrong: string[] = []
    for (const [id, row] of changes) {
      const { token, end, undo } = await make()
      let before = ''
      const answer = await heldOpen(address, row, token, async () => {
        await end()
        before = await fingerprint(service)
      })
      if (answer.status !== 401 || answer.body.error !== 'unauthenticated' || !answer.challenge.includes('error="invalid_token"')) wrong.push(`${id}: ${answer.status} ${JSON.stringify(answer.body)}`)
      if (await fingerprint(service) !== before) wrong.push(`${id} left something`)
      await undo?.()
    }
    t.strictSame(wrong, [], who)
  }
})

t.test('what a late body would only read is judged again', async (t) => {
  const address = await listening(0)
  for (const [who, make] of Object.entries(ENDINGS)) {
    for (const id of READS) {
      const { token, end, undo } = await make()
      const { status, body } = await heldOpen(address, OPERATIONS[id]!, token, end)
      // A role that lacks the scope is told so; the rest are nobody any more.
      const expected = who.startsWith('a member') ? [200, 403] : [401]
      t.ok(expected.includes(status), `${id} for ${who}: ${status} ${body?.error}`)
      await undo?.()
    }
  }
})

t.test('a token may end itself', async (t) => {
  const own = await nimbus.call('POST', `/organizations/${o}/api-keys`, { name: 'Short', abilities: ['api-token:delete'] })
  const { token, api_key: { id } } = own.body
  const end = () => service.inject({ method: 'DELETE', url: `/api/v1/organizations/${o}/api-keys/${id}`, headers: { authorization: `Bearer ${token}` } })
  t.equal((await end()).status, 204)
  t.equal((await end()).status, 401)
})
