// runs: one database
import { connect, type AddressInfo, type Socket } from 'node:net'
import { setTimeout as pause } from 'node:timers/promises'
import t from 'tap'
import { makeLevel, startApp } from '../helpers/app.ts'

// Responses that clients have not read are in the memory of the service.

t.test('RL-16: clients that do not read large responses fill no memory, and others are served', async (t) => {
  const service = await startApp(t)
  const caller = await service.organization()
  const level = await makeLevel(caller, { secret_format: 'json' })
  const { project, target } = level
  const names = (of: string) => Object.fromEntries(Array.from({ length: 4_990 }, (_, i) => [of + i, 'x'.repeat(190)]))
  for (const place of [{ project }, { project, target }, level]) {
    const plaintext = JSON.stringify(names(Object.keys(place).at(-1)![0]!))
    const { status } = await caller.call('POST', `/${caller.organization}/secrets/store`, { ...place, plaintext })
    t.equal(status, 200)
  }
  if (service.app.server.address() === null) await service.app.listen({ host: '127.0.0.1', port: 0 })
  const { port } = service.app.server.address() as AddressInfo
  const body = JSON.stringify({ ...level, action: 'decrypt', merge: 'both' })
  const read = async () => (await caller.call('POST', `/${caller.organization}/secrets/retrieve`, JSON.parse(body))).status
  t.equal(await read(), 200)
  // A response has 9 MB, so the organization has seven places.
  const sockets: Socket[] = []
  t.teardown(() => { for (const socket of sockets) socket.destroy() })
  const statuses = new Set<number>()
  for (let i = 0; i < 30 && !statuses.has(503); i++) {
    const socket = connect(port, '127.0.0.1').on('error', () => {}).pause()
    sockets.push(socket)
    socket.write(`POST /api/v1/${caller.organization}/secrets/retrieve HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${caller.token}\r\n` +
      `content-type: application/json\r\ncontent-length: ${body.length}\r\n\r\n${body}`)
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
