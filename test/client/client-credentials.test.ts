// runs: one database, embedded
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { startApp } from '../helpers/app.ts'
import { asToken, clientHome, otherServer, PLACE, placeWith } from '../helpers/strongroom.ts'

// A credential goes only to the service that it is for.

const service = await startApp(t)

t.test('no request with a credential leaves for an address in a file of the working directory', async (t) => {
  const { token } = await placeWith(service, 'A=1\n')
  const thief = await otherServer(t, (_request, response) => { response.setHeader('x-api-version', '1').end('{}') })
  const { run, folder } = clientHome(t, { STRONGROOM_TOKEN: token })
  writeFileSync(join(folder, '.strongroom.yaml'), `url: ${thief.url}\norganization: nimbus\nplace: ${PLACE}\n`)
  for (const args of [['run', '--', 'true'], ['run', '--offline', '--', 'true']]) {
    t.match(await run(args), { code: 125, stderr: /no login for http:[^\n]*STRONGROOM_TOKEN is sent only/ }, args.join(' '))
  }
  for (const args of [['get', 'A'], ['set', 'A'], ['list'], ['whoami'], ['doctor'], ['open', '--no-browser']]) {
    t.equal((await run(args)).code, 1, args.join(' '))
  }
  const deep = join(folder, 'a', 'b')
  mkdirSync(deep, { recursive: true })
  t.match(await run(['run', '--', 'true'], { cwd: deep }), { code: 125 })
  t.strictSame(thief.requests, [])
})

t.test('a file of the working directory names the place, and never a credential', async (t) => {
  const caller = await placeWith(service, 'A=1\n')
  const { run, folder } = clientHome(t, await asToken(service, caller))
  const write = (text: string) => writeFileSync(join(folder, '.strongroom.yaml'), text)
  write(`place: ${PLACE}\norganization: ${caller.organization}\n`)
  t.match(await run(['get', 'A']), { code: 0, stdout: '1' })
  t.match(await run(['get', 'A'], { env: { STRONGROOM_PLACE: 'orbit/backend/none' } }), { code: 1 }, 'the environment wins')
  t.match(await run(['get', 'A', '--place', PLACE], { env: { STRONGROOM_PLACE: 'orbit' } }), { stdout: '1' }, 'an option wins')
  for (const [text, problem] of [
    ['token: dotenv_x\n', /the field token/], ['url: [a]\n', /must be a text/], ['- a\n', /must have the fields/], ['a: [\n', /not valid YAML/],
    [`place: ${'x/'.repeat(40_000)}\n`, /larger than 64 KiB/], ['place: a/b/c/d\n', /no place/], ['place: ../etc\n', /no place/]
  ] as const) {
    write(text)
    t.match(await run(['run', '--', 'true']), { code: 125, stderr: problem }, text.slice(0, 40))
  }
})

t.test('plain http leaves the machine only to a host that the person named', async (t) => {
  const { run, folder } = clientHome(t, { STRONGROOM_TOKEN: 'dotenv_x', STRONGROOM_PLACE: PLACE })
  const url = 'http://strongroom.invalid:8080'
  for (const [name, args, env] of [
    ['no host', [], {}], ['another host', ['--insecure-http', 'other'], {}]
  ] as const) {
    t.match(await run(['run', '--url', url, ...args, '--', 'true'], { env }), { code: 125, stderr: /plain http/ }, name)
  }
  for (const [name, args, env] of [
    ['option', ['--insecure-http', 'strongroom.invalid'], {}], ['variable', [], { STRONGROOM_INSECURE_HTTP: 'a,strongroom.invalid' }]
  ] as const) {
    t.match(await run(['run', '--url', url, ...args, '--', 'true'], { env }), { code: 125, stderr: /cannot be reached/ }, name)
  }
  writeFileSync(join(folder, '.strongroom.yaml'), `url: ${url}\n`)
  t.match(await run(['run', '--', 'true']), { code: 125, stderr: /plain http/ })
  for (const bad of ['ftp://host', 'https://user:pw@host', 'https://host/?x=1', 'nonsense', 'https://host/#a']) {
    t.match(await run(['run', '--url', bad, '--', 'true']), { code: 125, stderr: /--url/ }, bad)
  }
})

t.test('a redirect is not followed, and a token is one line', async (t) => {
  const caller = await placeWith(service, 'A=1\n')
  const address = await service.listen()
  const other = await otherServer(t, (request, response) => {
    response.writeHead(307, { location: `${address}${request.url}`, 'x-api-version': '1' }).end()
  })
  const { run, folder } = clientHome(t, { STRONGROOM_URL: other.url, STRONGROOM_TOKEN: caller.token })
  t.match(await run(['run', PLACE, '--', 'true']), { code: 125, stderr: /cannot be reached/ })
  t.equal(other.requests.length, 1)
  const file = join(folder, 'token')
  writeFileSync(file, `${caller.token}\n`)
  const env = { STRONGROOM_URL: address, STRONGROOM_TOKEN: '', STRONGROOM_TOKEN_FILE: file }
  t.match(await run(['get', 'A', PLACE], { env }), { stdout: '1' })
  t.match(await run(['get', 'A', PLACE], { env: { ...env, STRONGROOM_TOKEN: 'x' } }), { code: 1, stderr: /not both/ })
  t.match(await run(['get', 'A', PLACE], { env: { ...env, STRONGROOM_TOKEN_FILE: `${file}x` } }), { code: 1, stderr: /cannot be read/ })
  writeFileSync(file, 'a b\nc')
  t.match(await run(['get', 'A', PLACE], { env }), { code: 1, stderr: /no token/ })
  for (const { stderr } of [await run(['get', 'A', PLACE], { env })]) t.notMatch(stderr, /a b/)
})

t.test('a secret that was set in place of an address, a file or a place is not shown', async (t) => {
  const { run } = clientHome(t, { STRONGROOM_PLACE: PLACE })
  for (const [args, env] of [
    [['get', 'A'], { STRONGROOM_URL: 'hidden secret' }],
    [['get', 'A'], { STRONGROOM_URL: 'https://host', STRONGROOM_TOKEN_FILE: 'hidden' }],
    [['get', 'A'], { STRONGROOM_URL: 'https://host', STRONGROOM_TOKEN: 'hidden\nsecret' }],
    [['set', 'A', 'hidden%'], {}],
    [['get', 'A'], { STRONGROOM_PLACE: 'hidden%' }],
    [['run', '--url', 'hidden', '--', 'true'], {}]
  ] as const) {
    const { code, stderr } = await run(args, { env })
    t.not(code, 0)
    t.match(stderr, /^strongroom: [^\n]+\n$/)
    t.notMatch(stderr, /hidden/, JSON.stringify([args, env]))
  }
})

t.test('whoami and doctor say who calls, and show no token', async (t) => {
  const caller = await placeWith(service, 'A=1\n')
  const { run } = clientHome(t, await asToken(service, caller))
  const who = JSON.parse((await run(['whoami', '--json'])).stdout)
  t.match(who, { kind: 'api_token', url: await service.listen(), credential: 'STRONGROOM_TOKEN' })
  const checked = await run(['doctor', PLACE])
  t.equal(checked.code, 0, checked.stdout)
  t.match(checked.stdout, /ok +permitted +1 names/)
  t.notOk((checked.stdout + checked.stderr + JSON.stringify(who)).includes(caller.token))
  t.match(await run(['doctor', 'orbit/backend/none', '--json']), { code: 1, stdout: /"permitted","ok":false/ })
})
