// runs: one database; fault
import { connect, type Socket } from 'node:net'
import { setTimeout as pause } from 'node:timers/promises'
import t from 'tap'
import { judge, startUnderFire, type UnderFire } from '../helpers/bystanders.ts'
import { cycles, outsideContract } from '../helpers/faults.ts'
import { badlyFramed, FORWARDED, PATHOLOGICAL } from '../helpers/hostile.ts'
import { hasPostgres } from '../helpers/postgres.ts'
import { heard, repliesIn, rest } from '../helpers/sockets.ts'
import { makeLevels, random, type Reply } from '../helpers/traffic.ts'

// Malicious bytes for a service in a separate process behind a trusted proxy.

const LARGE = cycles(20)
const AT_ONCE = 50
const CLIENTS = 16
const SEED = 20261123
const FUZZED = 60_000 * cycles(20) / 20
/** The maximum growth of the memory of a process in MiB. */
const GROWTH = 100
/** The maximum CPU time for one body in milliseconds. */
const DEAR = 100
/** The milliseconds that a client waits for a response to a request that may not end. */
const PATIENCE = 300
/** The default maximum size of a body. */
const BODY = 2 * 1024 * 1024

t.setTimeout(600_000)

t.test('hostile bytes', { skip: !hasPostgres() && 'PostgreSQL is not installed' }, async (t) => {
  const fire = await startUnderFire(t, { env: { TRUST_PROXY: 'loopback', RATE_LIMIT_OAUTH: '0' } })
  const { processes: [process], caller, watch } = fire as UnderFire & { processes: [UnderFire['processes'][0]] }
  await makeLevels(watch.send, 'fuzzed', ['live'])
  const { hostname, port } = new URL(process.server.address)
  const open = () => connect(Number(port), hostname).on('error', () => {})
  const own = `/api/v1/${caller.organization}`
  const bearer = `Host: x\r\nAuthorization: Bearer ${caller.token}\r\n`
  const json = 'Content-Type: application/json\r\n'
  const post = `POST ${own}/fuzzed/targets HTTP/1.1\r\n${bearer}${json}`

  /** Sends bytes at once. Returns all responses until the connection is closed. */
  async function exchange (text: string) {
    const socket = open()
    socket.write(text, 'latin1')
    return heard(socket)
  }

  /** Returns a problem unless there is exactly one response with this status. */
  const isNot = (status: number, replies: Reply[]) =>
    replies.length !== 1 || replies[0]!.status !== status ? [`${status} is expected: ${JSON.stringify(replies)}`] : []

  t.test('RL-17 bodies without end are refused before they are read, and take no memory', async (t) => {
    const outside: string[] = []
    let unheard = 0
    const before = process.memory()
    let most = before
    const watching = setInterval(() => { most = Math.max(most, process.memory()) }, 50)
    t.teardown(() => clearInterval(watching))
    const mebibyte = 'x'.repeat(2 ** 20)
    const chunk = `10000\r\n${'x'.repeat(2 ** 16)}\r\n`
    const ways: [begin: string, more: string][] = [
      [`${post}Content-Length: ${BODY + 1}\r\n\r\n`, mebibyte],
      [`${post}Content-Length: 10737418240\r\n\r\n`, mebibyte],
      [`${post}Transfer-Encoding: chunked\r\n\r\n`, chunk],
      [`${post}Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n`, `${(2 * BODY).toString(16)}\r\n${mebibyte}`]
    ]
    /** Sends data until a response arrives or the connection is closed. */
    async function pour (socket: Socket, begin: string, more: string) {
      const answer = rest(socket)
      const pump = () => {
        while (socket.bytesRead === 0 && socket.writable && socket.write(more, 'latin1'));
      }
      socket.on('drain', pump)
      socket.write(begin, 'latin1')
      pump()
      return answer
    }
    for (let round = 0; round < LARGE; round++) {
      await Promise.all(Array.from({ length: AT_ONCE }, async (_, i) => {
        const [begin, more] = ways[i % ways.length]!
        const replies = repliesIn(await pour(open(), begin, more))
        // The operating system discards the response if the client keeps sending on a closed connection.
        if (replies.length === 0) unheard++
        else outside.push(...isNot(413, replies), ...outsideContract('POST', '/fuzzed/targets', replies[0]!))
      }))
    }
    clearInterval(watching)
    t.ok(unheard < LARGE * AT_ONCE / 2, `${unheard} heard nothing`)
    t.ok(most - before < GROWTH, `${before} MiB before, ${most} at most`)
    await judge(t, fire, {
      fault: 'huge bodies (RL-17)',
      cycles: LARGE * AT_ONCE,
      outside: [...new Set(outside)],
      note: `${(most - before).toFixed()} MiB more at most; ${unheard} sent on and heard nothing`
    })
  })

  t.test('RL-18 JSON that is dear to read is refused, and costs little', async (t) => {
    const outside: string[] = []
    const costs: number[] = []
    const rounds = cycles(20)
    for (const [name, text] of PATHOLOGICAL) {
      const before = process.cpu()
      for (let round = 0; round < rounds; round++) {
        const replies = await exchange(`${post}Connection: close\r\nContent-Length: ${text.length}\r\n\r\n${text}`)
        const [reply] = replies
        const isRefused = replies.length === 1 && (reply!.status === 400 || reply!.status === 422)
        if (!isRefused) outside.push(`${name}: ${JSON.stringify(replies)}`)
        else outside.push(...outsideContract('POST', '/fuzzed/targets', reply!))
      }
      costs.push((process.cpu() - before) / rounds)
    }
    t.ok(Math.max(...costs) < DEAR, `${costs.join(', ')} ms`)
    await judge(t, fire, {
      fault: 'pathological JSON (RL-18)',
      cycles: rounds * PATHOLOGICAL.length,
      outside: [...new Set(outside)],
      note: `${Math.max(...costs).toFixed(1)} ms of CPU for the dearest`
    })
  })

  t.test('RL-20 bad framing, too many headers and bad addresses are refused or served; the service goes on', async (t) => {
    const outside: string[] = []
    const rounds = cycles(20)
    const get = (headers: string) => `GET /healthz HTTP/1.1\r\nHost: x\r\n${headers}Connection: close\r\n\r\n`
    for (let round = 0; round < rounds; round++) {
      await Promise.all([
        ...badlyFramed(post, BODY).map(async ([name, request, status, code]) => {
          const replies = await exchange(request)
          outside.push(...isNot(status, replies), ...replies.filter(({ body }) => body.error !== code).map(() => name))
        }),
        ...FORWARDED.flatMap((address) => [`X-Forwarded-For: ${address}`, `Forwarded: for=${address}`, `X-Real-IP: ${address}`])
          .map(async (header) => {
            // A header with a control character is invalid.
            const status = header.includes('\u001b') ? 400 : 200
            outside.push(...isNot(status, await exchange(get(`${header}\r\n`))))
          }),
        ...['PROXY TCP4 1.1.1.1 2.2.2.2 1 2\r\n', 'PROXY UNKNOWN\r\n', 'PROXY TCP6 ::1\r\n', '\r\n\r\n\0\r\nQUIT\n!\x11\0\x0c'].map(async (line) => {
          outside.push(...isNot(400, await exchange(line + get(''))))
        })
      ])
    }
    await judge(t, fire, { fault: 'bad framing and headers (RL-20)', cycles: rounds, outside: [...new Set(outside)] })
  })

  t.test(`RL-21 no bytes at all make it fail (seed ${SEED})`, async (t) => {
    const next = random(SEED)
    const pick = <T>(from: readonly T[]): T => from[Math.floor(next() * from.length)]!
    const bodied = (first: string, type: string, body: string) =>
      `${first} HTTP/1.1\r\n${bearer}Content-Type: ${type}\r\nX-Forwarded-For: 10.1.2.3, 1.2.3.4\r\nContent-Length: ${body.length}\r\n\r\n${body}`
    const bare = (first: string) =>
      `${first} HTTP/1.1\r\n${bearer}Accept: */*\r\nIf-None-Match: "a", W/"b"\r\nX-Request-Id: fuzz\r\n\r\n`
    const good = [
      bare('GET /healthz'),
      bare(`GET ${own}/projects?page=1&per_page=5`),
      bare(`GET ${own}/fuzzed/backend/live/secrets?decrypt=true`),
      bare(`OPTIONS ${own}/projects`),
      bare('GET /.well-known/oauth-authorization-server'),
      bodied(`POST ${own}/fuzzed/targets`, 'application/json', '{"name":"Fuzz","description":"x"}'),
      bodied(`PATCH ${own}/fuzzed`, 'application/json', '{"description":"\\u00e9 \\ud83d\\ude80 \\"x\\""}'),
      bodied(`POST ${own}/secrets/versions`, 'application/json', '{"project":"fuzzed","target":"backend","environment":"live","page":1}'),
      bodied(`POST ${own}/secrets/store`, 'application/json', '{"project":"nowhere","plaintext":"A=1"}'),
      bodied('POST /api/oauth/token', 'application/x-www-form-urlencoded', 'grant_type=authorization_code&code=x&client_id=y'),
      `POST ${own}/fuzzed/targets HTTP/1.1\r\n${bearer}${json}Transfer-Encoding: chunked\r\n\r\n5\r\n{"nam\r\n7\r\ne":"Y"}\r\n0\r\n\r\n`
    ]
    const words = [
      '\r\n', '\n', '\0', ' ', '\t', ':', ';', ',', '"', '\\', '{', '[', '%00', '%ff', '\xff', '../', '//', '9'.repeat(30), '-1', '0x7fffffff',
      'Content-Length: 5\r\n', 'Transfer-Encoding: chunked\r\n', 'Expect: 200-ok\r\n', 'Upgrade: h2c\r\nConnection: Upgrade\r\n',
      'PUT ', 'TRACE ', 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', 'HTTP/1.0', 'HTTP/9.9', '\x16\x03\x01\x02\0\x01\0', 'a'.repeat(9_000), '\\ud800', '\\u0000',
      'null', '__proto__', '1e999'
    ]
    const damages: ((before: string, text: string, length: number) => string)[] = [
      (before, text) =>
        before + String.fromCharCode(text.charCodeAt(0) ^ (1 << Math.floor(next() * 8))) + text.slice(1),
      (before, text, length) => before + text.slice(length),
      (before, text) => before + pick(words) + text,
      (before, text, length) => before + pick(words) + text.slice(length),
      (before, text, length) => before + text.slice(0, length).repeat(2) + text.slice(length),
      (before) => before + pick(good).slice(Math.floor(next() * 100))
    ]
    const damageAnywhere = (text: string): string => {
      const at = Math.floor(next() * text.length)
      return pick(damages)(text.slice(0, at), text.slice(at), Math.floor(next() * 20))
    }
    // Damages only the body in half of the cases, because the service rarely reads the body after a damaged head.
    const damage = (text: string): string => {
      const [head = '', body = ''] = text.split(/(?<=\r\n\r\n)/)
      if (body === '' || next() < 0.5) return damageAnywhere(text)
      const damaged = damageAnywhere(body)
      return head.replace(/Content-Length: \d+/, `Content-Length: ${damaged.length}`) + damaged
    }
    const outside: string[] = []
    const seen: Record<number, number> = {}
    let sent = 0
    const ends = performance.now() + FUZZED
    await Promise.all(Array.from({ length: CLIENTS }, async () => {
      while (performance.now() < ends) {
        const whole = pick(good)
        let text = whole
        for (let times = 1 + Math.floor(next() * 3); times > 0; times--) text = damage(text)
        sent++
        const socket = open()
        const answer = rest(socket)
        const cut = next() < 0.3 ? Math.floor(next() * text.length) : text.length
        socket.write(text.slice(0, cut), 'latin1')
        if (cut < text.length) {
          await pause(1)
          socket.write(text.slice(cut), 'latin1')
        }
        if (next() < 0.1) socket.resetAndDestroy()
        else if (next() < 0.5) socket.end()
        const late = setTimeout(() => socket.destroy(), PATIENCE)
        const came = await answer
        clearTimeout(late)
        const [, method = '', path = ''] = /^(\w+) (\S+) HTTP\/1\.1\r\n/.exec(text) ?? []
        // OPTIONS gets a response for every path.
        const isMeant = path !== '' && method !== 'OPTIONS' && whole.startsWith(`${method} ${path} `)
        const where = path.startsWith(own) ? path.slice(own.length) : `/${path}`
        try {
          for (const [i, reply] of repliesIn(came).entries()) {
            seen[reply.status] = (seen[reply.status] ?? 0) + 1
            const wrong = i === 0 && isMeant ? outsideContract(method, where, reply) : []
            if (reply.status >= 500 && wrong.length === 0) wrong.push(`${reply.status}: ${JSON.stringify(reply.body)}`)
            for (const what of wrong) outside.push(`${what} to ${JSON.stringify(text.slice(0, 3_000))}`)
          }
        } catch (error) {
          outside.push(`${String(error)}: ${JSON.stringify([text.slice(0, 3_000), came])}`)
        }
      }
    }))
    t.ok(sent > 0)
    await judge(t, fire, {
      fault: 'fuzzed bytes (RL-21)',
      cycles: sent,
      outside: outside.slice(0, 10),
      note: Object.entries(seen).map(([status, count]) => `${count} × ${status}`).join(', ')
    })
  })
})
