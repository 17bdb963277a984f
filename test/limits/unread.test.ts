// runs: one database
import { connect, type Socket } from 'node:net'
import { setTimeout as pause } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { makeLevel, startApp } from '../helpers/app.ts'
import { postAndLeave, textOf, type Posted } from '../helpers/sockets.ts'
import { until } from '../helpers/until.ts'

// Responses that clients have not read are in the memory of the service.

const service = await startApp(t)
const address = await service.listen()

/**
 * A caller, a request for a response of 9 MB, of which an organization has room for seven, and a function that sends
 * the request and returns the status.
 */
async function largeReads (t: Test) {
  const caller = await service.organization()
  const level = await makeLevel(caller, { secret_format: 'json' })
  const { project, target } = level
  const names = (of: string) => Object.fromEntries(Array.from({ length: 4_990 }, (_, i) => [of + i, 'x'.repeat(190)]))
  for (const place of [{ project }, { project, target }, level]) {
    const plaintext = JSON.stringify(names(Object.keys(place).at(-1)![0]!))
    const { status } = await caller.call('POST', `/${caller.organization}/secrets/store`, { ...place, plaintext })
    t.equal(status, 200)
  }
  const path = `/${caller.organization}/secrets/retrieve`
  const body = { ...level, action: 'decrypt', merge: 'both' }
  const headers = { authorization: `Bearer ${caller.token}`, 'content-type': 'application/json' }
  const request: Posted = { path: `/api/v1${path}`, headers, body: JSON.stringify(body) }
  const read = async () => (await caller.call('POST', path, body)).status
  return { caller, request, read }
}

const unread = () => connect(Number(new URL(address).port), '127.0.0.1').on('error', () => {}).pause()

t.test('RL-16: clients that do not read large responses fill no memory, and others are served', async (t) => {
  const { caller, request, read } = await largeReads(t)
  t.equal(await read(), 200)
  const sockets: Socket[] = []
  t.teardown(() => { for (const socket of sockets) socket.destroy() })
  const statuses = new Set<number>()
  for (let i = 0; i < 30 && !statuses.has(503); i++) {
    const socket = unread()
    sockets.push(socket)
    socket.write(textOf(request))
    await pause(50)
    statuses.add(await read())
  }
  t.strictSame([...statuses], [200, 503], `${sockets.length} clients do not read`)
  t.equal((await caller.call('GET', `/${caller.organization}/projects`)).status, 200, 'small responses are sent')
  const other = await service.organization()
  t.equal((await other.call('GET', `/${other.organization}/projects`)).status, 200)
  for (const socket of sockets) socket.destroy()
  let last = 503
  for (let i = 0; i < 200 && last === 503; i++) {
    await pause(50)
    last = await read()
  }
  t.equal(last, 200, 'the places are free again')
})

t.test('RL-16: a closed connection gives back the places of all its responses, sent before or after its end', async (t) => {
  const { request, read } = await largeReads(t)
  t.equal(await read(), 200)
  // Pipelined: the responses after the first one wait for it.
  const socket = unread()
  t.teardown(() => { socket.destroy() })
  socket.write(textOf(request).repeat(8))
  await until(async () => await read() === 503)
  socket.destroy()
  await until(async () => await read() === 200)
  const ids = Array.from({ length: 8 }, (_, i) => `unread-${i}`)
  await postAndLeave(address, ids.map((id) => ({ ...request, headers: { ...request.headers, 'x-request-id': id } })))
  for (const id of ids) await until(() => service.logs.some((line) => line.includes(`"reqId":"${id}"`)))
  t.equal(await read(), 200, 'the places are free again')
})
