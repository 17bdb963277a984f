// runs: one database
import { connect, type AddressInfo } from 'node:net'
import { Type } from '@sinclair/typebox'
import t from 'tap'
import { yieldingBetween } from '../../src/http/bodies/large-bodies.ts'
import { boundsOf, readJsonBody, readLargeJson } from '../../src/http/bodies/json.ts'
import { parseJson } from '../../src/rules/documents/json.ts'
import { readValue } from '../../src/rules/documents/value.ts'
import { ApiError } from '../../src/rules/api-error.ts'
import { sealBlob } from '../../src/crypto/blob.ts'
import { makeLevel, startApp, type Caller } from '../helpers/app.ts'
import { clientKey } from '../helpers/client.ts'
import { rest } from '../helpers/sockets.ts'

const ROOMY = { members: 10_000, depth: 20 }

async function * inChunks (bytes: Buffer, size: number): AsyncGenerator<Buffer> {
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size)
}

/** The value of a text, or the error code of its refusal. */
async function outcome (read: () => unknown): Promise<unknown> {
  try {
    return await read()
  } catch (error) {
    if (error instanceof ApiError) return error.code
    throw error
  }
}

const bothWays = (text: string, size = 3) => [
  () => readJsonBody(Buffer.from(text), ROOMY),
  () => readLargeJson(inChunks(Buffer.from(text), size), ROOMY, 1e9)
]

t.test('a name twice in one object is malformed JSON, at any depth and in any spelling', async (t) => {
  const twice = [
    '{"a":1,"a":2}', '{"a":1,"a":1}', '{"a":1,"\\u0061":2}', '{"\\u0061":1,"\\u0061":2}', '{"a":1, "b":2 ,\n"a" :3}', '{"__proto__":1,"__proto__":2}', '{"__proto__":1,"\\u005f_proto__":2}',
    '{"":1,"":2}', '{"x":{"a":1,"a":2}}', '{"x":[{"a":1,"a":2}]}', '{"x":[[[{"a":{"b":1,"b":2}}]]]}', '{"é":1,"\\u00e9":2}', '{"\\/":1,"/":2}', '{"\\"":1,"\\u0022":2}', '{"🚀":1,"\\ud83d\\ude80":2}',
    '{"x":"a","y":{},"x":[]}', '{"toString":1,"toString":2}', '{"constructor":{"a":1},"constructor":{}}'
  ]
  const once = [
    '{"a":1,"A":2}', '{"a":{"a":{"a":1}}}', '{"x":[{"a":1},{"a":2}]}', '{"a":"a","b":"a"}', '{"a":["a","a"]}',
    '{"a":"\\"a\\":1,","b":1}', '{"\\\\u0061":1,"a":2}', '{"e\\u0301":1,"é":2}', '{"toString":1}'
  ]
  for (const text of twice) for (const read of bothWays(text)) t.equal(await outcome(read), 'malformed_json', text)
  for (const text of once) for (const read of bothWays(text)) t.strictSame(await outcome(read), JSON.parse(text), text)
})

t.test('what a large body says is what JSON.parse says of it, however it is cut', async (t) => {
  const random = generator(8)
  const pick = <T>(from: readonly T[]): T => from[Math.floor(random() * from.length)]!
  const text = (depth = 0): string => {
    const kind = depth > 4 ? random() * 0.6 : random()
    const gap = () => pick(['', '', ' ', '\n\t'])
    if (kind < 0.2) return pick(['0', '-1.5e3', 'true', 'null', '12'])
    if (kind < 0.6) return pick(['"plain"', '""', '"\\\\"', '"a\\"b"', '"[{,:"', '"\\u00e9é🚀"', '"\\\\\\""', '"]}"'])
    const size = Math.floor(random() * 4)
    if (kind < 0.8) return `[${gap()}${Array.from({ length: size }, () => text(depth + 1) + gap()).join(`,${gap()}`)}]`
    return `{${gap()}${Array.from({ length: size }, (_, i) => `"k${i}"${gap()}:${gap()}${text(depth + 1)}`).join(`,${gap()}`)}}`
  }
  const damaged = (whole: string) => {
    const at = Math.floor(random() * whole.length)
    return whole.slice(0, at) + pick(['', ',', ']', '}', '{', '[', '"', ':', '1', '\\']) +
      whole.slice(at + Math.floor(random() * 2))
  }
  const kinds = { good: 0, bad: 0 }
  for (let n = 0; n < 4000; n++) {
    const whole =
      `{"list":[${Array.from({ length: Math.floor(random() * 4) }, () => text(1)).join(',')}],"other":${text(1)},"more":[${text(2)}]}`
    const sent = Buffer.from(n % 2 === 0 ? whole : damaged(whole)).toString()
    let expected: unknown
    try {
      expected = JSON.parse(sent)
      kinds.good++
    } catch {
      expected = 'malformed_json'
      kinds.bad++
    }
    for (const read of bothWays(sent, 1 + Math.floor(random() * 20))) {
      const found = await outcome(read)
      // A damaged body may have the same name twice, which JSON.parse accepts.
      if (JSON.stringify(found) !== JSON.stringify(expected) && !(n % 2 === 1 && found === 'malformed_json')) {
        t.fail(`${sent}: ${JSON.stringify(found)}`)
      }
    }
  }
  t.ok(kinds.good > 1500 && kinds.bad > 1000, JSON.stringify(kinds))
})

t.test('malformed JSON has the position of its first error, also in a body that is read in pieces', async (t) => {
  const positionOf = async (read: () => unknown) => {
    try {
      return await read()
    } catch (error) {
      return error instanceof ApiError && error.code === 'malformed_json' ? error.details : error
    }
  }
  const list = (elements: string) => `{\n  "list": [${elements}],\n  "é😀": 1\n}`
  for (const [text, line, column, name] of [
    [list('1, 2,\n x'), 3, 2], [list('1, 2, '), 2, 18], [list(', 1'), 2, 12], [list('{"a": 1 "b"}'), 2, 20],
    [list('1 2'), 2, 14], ['{"é😀" x', 1, 7], ['{"é😀": [1,2,3]]', 1, 15], [`${list('1,2')}}`, 4, 2], ['{"list":[1,\n2', 2, 2],
    ['{"a" "b": 1, "list": [x]}', 1, 6], ['{"list":[1,2] "b"}', 1, 15], ['{"list":[{"a":1,\n"a":2}]}', 2, 1, 'a'],
    ['{"a":1,"\\u0061":2}', 1, 8, 'a'], ['{"a":1,"\\x":2}', 1, 9], [']', 1, 1], ['{"list":[], "list":[1]}', 1, 13, 'list'], ['{', 1, 2],
    ['{"":1,"":2}', 1, 7, ''], ['\n\r\n\n {"a":1,"é😀":😀', 4, 14]
  ] as const) {
    for (const size of [1, 2, 3, 100]) {
      for (const read of bothWays(text, size)) {
        t.strictSame(await positionOf(read), { line, column, ...(name !== undefined && { name }) }, text)
      }
    }
  }
  const escapes = `{"a":"${'\\"'.repeat(900_000)}`
  for (const read of bothWays(escapes, 65_536)) {
    t.strictSame(await positionOf(read), { line: 1, column: escapes.length + 1 }, 'a long text without an end')
  }
  for (const [lineEnd, lines] of [['\n', 3_000_000], ['\r', 3_000_000], ['\r\n', 1_500_000]] as const) {
    for (const read of bothWays(`${lineEnd.repeat(lines)}😀`, 65_536)) {
      t.strictSame(await positionOf(read), { line: lines + 1, column: 1 }, 'very many lines')
    }
  }
})

t.test('names with escape sequences are read as written, whatever was read before', async (t) => {
  // JSON.parse of Node.js 24 and 26 confuses some of these names with names of earlier texts.
  const names = ['\\\\', '\\"', '\\u00e9', '\\n', '\\/', '\\u0061b', '\\\\\\"', 'a\\t', '\\u0000', '__proto__', '\\u005f_proto__x']
  for (const name of names) parseJson(`{"${name}":0}`)
  for (const name of names) {
    const decoded = JSON.parse(`"${name}"`) as string
    const named = (value: unknown) => Object.fromEntries([[decoded, value]])
    const values: [text: string, value: unknown][] = [
      ['0', 0], ['"\\\\:{"', '\\:{'], ['[]', []], ['[ ]', []], ['{ }', {}], ['[1, [ "," ], {}]', [1, [','], {}]],
      [`{"a":[{"${name}":null}]}`, { a: [named(null)] }]
    ]
    for (const [text, value] of values) {
      const found = parseJson(` {"${name}" : ${text}, "x":{"${name}":[${text}]}}`)
      t.strictSame(found, { ...named(value), x: named([value]) }, `${name} ${text}`)
    }
    t.strictSame(readValue('json', `{"${name}":"found"}`, decoded), { value: 'found' }, name)
  }
  t.strictSame(parseJson('{"\\n":1,"\\u000a":2}'), { '\n': 2 }, 'the last of two')
  t.throws(() => parseJson('{"\\n":1'))
})

t.test('a large body is read in steps, whatever it comes in, and none of its pieces is long', async (t) => {
  const blob = 'A'.repeat(700_000)
  const whole = Buffer.from(JSON.stringify({
    secrets: Array.from({ length: 30 }, (_, id) => ({ id: String(id), content: blob })), key_check: 'x'
  }))
  for (const size of [64 * 1024, whole.length]) {
    let pauses = 0
    const read = await readLargeJson(inChunks(whole, size), ROOMY, whole.length, async () => { pauses++ })
    t.ok(
      pauses >= Math.floor(whole.length / (320 * 1024)),
      `${pauses} rests in ${whole.length} bytes that came in chunks of ${size}`
    )
    t.equal((read as { secrets: unknown[] }).secrets.length, 30)
  }
  const read = (text: string) => outcome(() => readLargeJson(inChunks(Buffer.from(text), 1 << 20), ROOMY, 1e9))
  const long = 'x'.repeat(4 << 20)
  for (const text of [`{"list":["${long}"]}`, `{"a":"${long}"}`, `{"${long}":1}`, `[["${long}"]]`]) {
    t.equal(await read(text), 'validation_failed', 'a long piece is refused as soon as it is too long')
  }
  t.equal(await outcome(() => readLargeJson(inChunks(whole, 65_536), ROOMY, whole.length - 1)), 'payload_too_large')
  t.equal(await outcome(() =>
    readLargeJson(inChunks(Buffer.from([0x7b, 0x22, 0xff, 0x22, 0x7d]), 1), ROOMY, 100)), 'malformed_json')
  t.equal(await outcome(() => readLargeJson(inChunks(Buffer.alloc(0), 1), ROOMY, 100)), undefined)

  const turns: number[] = []
  const blobs = Array.from({ length: 64 }, () => blob)
  let bytes = 0
  for await (const [, element] of yieldingBetween(blobs, (one) => one.length, async () => {
    turns.push(bytes)
    bytes = 0
  })) bytes += element.length
  t.ok(turns.length >= 30 && Math.max(...turns) <= 2 * 1024 * 1024, `rests after ${turns.slice(0, 3).join(', ')} bytes`)
})

t.test('the schema limits the number of members of a body, and the check comes before objects are built', async (t) => {
  const schema = Type.Object({
    name: Type.String(),
    list: Type.Array(
      Type.Object({ a: Type.String(), b: Type.Optional(Type.String()) }, { additionalProperties: false }),
      { maxItems: 10 }
    ),
    either: Type.Union([Type.Null(), Type.Array(Type.String(), { maxItems: 5 })])
  }, { additionalProperties: false })
  t.same(boundsOf(schema).members, 3 + (1 + 10 * 3) + (1 + 5) + 100)
  t.throws(() =>
    boundsOf(Type.Object({ list: Type.Array(Type.String()) }, { additionalProperties: false })), /maxItems/)
  t.throws(() => boundsOf(Type.Object({ a: Type.String() })), /additionalProperties/)
  const { parse } = JSON
  let parsed = 0
  JSON.parse = (...args) => { parsed++; return parse(...args) }
  t.teardown(() => { JSON.parse = parse })
  const many = `{${Array.from({ length: 99_990 }, (_, i) => `"member${i}":1`).join(',')}}`
  for (const text of [
    many, `{"a":${many}}`, `[${'0,'.repeat(99_990)}0]`, `{"a":${'[],'.repeat(9)}${'['.repeat(15)}`.repeat(99)
  ]) {
    t.match(await outcome(() => readJsonBody(Buffer.from(text), boundsOf(schema))), /validation_failed|malformed_json/)
  }
  t.equal(parsed, 0, 'nothing was parsed')
})

t.test('no published operation parses a body of many members, and each bounds its own', async (t) => {
  const service = await startApp(t, { BODY_LIMIT: '64KiB' })
  const caller = await service.organization()

  t.test('RL-18 a body of many unknown members is counted, not built', async (t) => {
    const text = `{${Array.from({ length: 5_000 }, (_, i) => `"m${i}":1`).join(',')}}`
    const operations = Object.entries(service.app.swagger().paths ?? {}).filter(([path]) =>
      !path.startsWith('/api/oauth/'))
      .flatMap(([path, item]) => Object.entries(item as object).filter(([, operation]) =>
        'requestBody' in operation).map(([method]) => ({ path, method })))
    t.ok(operations.length >= 15)
    const placed = await makeLevel(caller, (await clientKey('many members, one key')).registration)
    for (const { path, method } of operations) {
      const url = path.replace('{organization}', caller.organization).replace(
        '{project}', placed.project
      ).replace('{target}', placed.target).replace('{environment}', placed.environment).replace(/{\w+}/, '1')
      const answer = await service.inject({
        method: method as 'POST',
        url,
        headers: {
          authorization: `Bearer ${caller.token}`, 'content-type': 'application/json'
        },
        payload: text
      })
      const isCounted = /more than \d+ members/.test(answer.body?.errors?.body?.[0] ?? '')
      if (/rotate-client-keys|retrieve/.test(path)) t.equal(answer.status, 422, url)
      else t.ok(answer.status === 422 && isCounted, `${method} ${url}: ${answer.text.slice(0, 200)}`)
    }
  })

  await service.app.listen({ host: '127.0.0.1', port: 0 })
  const { port } = service.app.server.address() as AddressInfo

  t.test('RL-18 a body in very many small chunks is 413, and the connection closes; other bodies are read', async (t) => {
    const { organization, token } = caller
    const send = async (path: string, length: number, size: number) => {
      const body = `{"project":"none","plaintext":"${'a'.repeat(length)}"}`
      const chunks: string[] = []
      for (let at = 0; at < body.length; at += size) {
        const chunk = body.slice(at, at + size)
        chunks.push(`${chunk.length.toString(16)}\r\n${chunk}\r\n`)
      }
      const socket = connect(port, '127.0.0.1')
      socket.write(`POST /api/v1/${organization}/secrets/${path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${token}\r\n` +
        `content-type: application/json\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n${chunks.join('')}0\r\n\r\n`)
      const answer = await rest(socket)
      // The client can lose the response, because it still sends when the connection closes.
      return answer === '' ? '413' : answer.slice('HTTP/1.1 '.length, 'HTTP/1.1 404'.length)
    }
    for (const [path, read] of [['store', '404'], ['retrieve', '422']] as const) {
      t.equal(await send(path, 60_000, 1), '413', `${path} in chunks of a byte`)
      t.equal(await send(path, 10_000, 1), '413', `${path} in chunks that come before the access checks end`)
      t.equal(await send(path, 1_500, 1), read, `${path} of few chunks of a byte`)
      t.equal(await send(path, 60_000, 100), read, `${path} in chunks of 100 bytes`)
    }
    t.equal(await send('store', 200_000, 64), '404', 'a large body')
    t.equal(await send('store', 350_000, 8), '413', 'a large body in small chunks')
    t.equal(await send('store', 380_000, 48), '413', 'a larger body, with more such chunks than a normal one has')
    t.equal(await send('store', 350_000, 256), '404', 'a larger body in chunks of 256 bytes')
    t.equal((await caller.call('GET', `/${organization}/projects`)).status, 200)
  })

  t.test('a client that drops its large upload gives its place back: four of them, and a rotation works', async (t) => {
    const other = await service.organization()
    const [{ path, body }, { path: others }] = [await rotationOf(caller), await rotationOf(other)]
    for (let round = 0; round < 3; round++) {
      const begun = `{"secrets":[{"id":"${'x'.repeat(100_000)}`
      const dropped = [...await takePlaces(port, path, caller, begun), ...await takePlaces(port, others, other, begun)]
      for (const socket of dropped) socket.destroy()
      await settled(port, caller, path, 422)
    }
    // The service processes a body that has arrived completely, even if its client is gone. Then its slot is free
    // again.
    const wrong = Buffer.from(String(body).replace(/"key_check":"[^"]*"/, '"key_check":""'))
    for (let n = 0; n < 6; n++) {
      const socket = upload(port, path, caller, wrong.length)
      await new Promise((resolve) => socket.write(wrong, resolve))
      socket.destroy()
    }
    await settled(port, caller, path, 422)
    const answer = await send(port, path, caller, body)
    t.match(answer, /^HTTP\/1\.1 200 /, answer.slice(0, 400))
  })

  t.test('whose scope or place is refused takes no place, and one organization never has all of them', async (t) => {
    const other = await service.organization()
    const { path, body } = await rotationOf(other)
    const narrow = await service.token(caller.organization, ['secret:read'])
    const own = (await rotationOf(caller)).path
    const refused = [
      upload(port, own, narrow, 500_000),
      upload(port, `/api/v1/${caller.organization}/nowhere/secrets/rotate-client-keys`, caller, 500_000)
    ]
    t.match(
      await Promise.all(refused.map(async (socket) => (await rest(socket)).slice(9, 12))), ['403', '404'],
      'before any of the body came'
    )
    const held = await takePlaces(port, own, caller)
    t.match(
      await rest(upload(port, own, caller, 500_000)), /^HTTP\/1\.1 503 [\s\S]*service_unavailable/,
      'two are all that one organization has'
    )
    t.match(
      await send(port, own, caller, Buffer.from('{}')), /^HTTP\/1\.1 422 /,
      'a body that is no larger than others needs none'
    )
    t.match(await send(port, path, other, body), /^HTTP\/1\.1 200 /, 'and another organization goes on')
    for (const socket of held) socket.destroy()
  })
})

/** A valid rotation with a large body. Returns the path and the body. */
async function rotationOf (caller: Caller): Promise<{ path: string, body: Buffer }> {
  const [old, fresh] = [await clientKey('first key of two'), await clientKey('second key of two')]
  const at = await makeLevel(caller, { name: 'Large', ...old.registration })
  const level = { project: at.project, target: at.target, environment: at.environment }
  const own = `/${caller.organization}`
  await caller.call(
    'POST', `${own}/secrets/store`, { ...level, content: sealBlob(old.dataKey, 'x'.repeat(1000)), key_proof: old.proof }
  )
  const { levels } = (await caller.call(
    'GET', `${own}/${at.project}/${at.target}/${at.environment}/secrets`
  )).body.data.attributes
  const { storage_mode: _, ...triple } = fresh.registration
  const body = Buffer.from(JSON.stringify({
    secrets: [{ id: levels.environment.id, content: sealBlob(fresh.dataKey, 'y'.repeat(90_000)) }], ...triple
  }))
  return { path: `/api/v1${own}/${at.project}/secrets/rotate-client-keys`, body }
}

/**
 * Starts two uploads of the caller that occupy all slots of an organization. The check for free slots takes a slot for
 * a moment, so the service may refuse one of the two uploads. Then the test starts this upload again.
 */
async function takePlaces (port: number, path: string, caller: Caller, begun = '') {
  const begin = () => {
    const socket = upload(port, path, caller, 500_000)
    const held = { socket, isRefused: false }
    socket.once('data', () => { held.isRefused = true })
    socket.write(begun)
    return held
  }
  const held = [begin(), begin()]
  await settled(port, caller, path, 503, () => {
    for (const [i, { isRefused }] of held.entries()) if (isRefused) held[i] = begin()
  })
  return held.map(({ socket }) => socket)
}

/** Repeats a chunked request, which counts as large, until the response has the expected status. */
async function settled (port: number, caller: Caller, url: string, status: number, again = () => {}) {
  for (let asked = 0; asked < 2_000; asked++) {
    const answer = await send(port, url, caller, undefined)
    if (answer.startsWith(`HTTP/1.1 ${status} `)) return
    if (!/^HTTP\/1\.1 (?:503|422) /.test(answer)) throw new Error(answer)
    again()
  }
  throw new Error(`never ${status}`)
}

const head = (path: string, { token }: Caller) =>
  `POST ${path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${token}\r\nContent-Type: application/json\r\nConnection: close\r\n`

/** Sends the head of a request, and not its body. */
function upload (port: number, path: string, caller: Caller, length: number) {
  const socket = connect(port, '127.0.0.1')
  socket.on('error', () => {})
  socket.write(`${head(path, caller)}Content-Length: ${length}\r\n\r\n`)
  return socket
}

async function send (port: number, path: string, caller: Caller, body: Buffer | undefined): Promise<string> {
  const socket = connect(port, '127.0.0.1')
  socket.write(body === undefined
    ? `${head(path, caller)}Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n`
    : `${head(path, caller)}Content-Length: ${body.length}\r\n\r\n`)
  if (body !== undefined) socket.write(body)
  return rest(socket)
}

// mulberry32
function generator (seed: number) {
  return () => {
    seed = seed + 0x6d2b79f5 | 0
    let x = Math.imul(seed ^ seed >>> 15, 1 | seed)
    x = x + Math.imul(x ^ x >>> 7, 61 | x) ^ x
    return ((x ^ x >>> 14) >>> 0) / 4294967296
  }
}
