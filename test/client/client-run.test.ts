// runs: one database, embedded; 25 s
import { chmodSync, existsSync, lstatSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { startApp } from '../helpers/app.ts'
import { LONG, sample } from '../helpers/long.ts'
import { run as runProgram } from '../helpers/process.ts'
import { asToken, CLIENT, clientHome, PLACE, placeWith, store, variablesIn } from '../helpers/strongroom.ts'
import { checkOf, newKey, sealBlob } from '../../src/client/keys.ts'

// `strongroom run` and the commands by hand, against a service.

const service = await startApp(t)

t.test('a program gets the merged values in its environment, and its status is the status of the command', async (t) => {
  const caller = await placeWith(service, 'NAME=live\nMULTI="a\nb"\n')
  await caller.call('POST', `/${caller.organization}/secrets/store`, { project: 'orbit', plaintext: 'NAME=above\nSHARED=1\n' })
  const { run } = clientHome(t, await asToken(service, caller))
  const shown = await run(['run', PLACE, '--', 'env', '-0'])
  const variables = variablesIn(shown.bytes)
  t.strictSame([variables.get('NAME'), variables.get('MULTI'), variables.get('SHARED')], ['live', 'a\nb', '1'])
  t.notOk([...variables.keys()].some((name) => name.startsWith('STRONGROOM_')), 'the credential stays with the client')
  const kept = variablesIn((await run(['run', '--keep-token', PLACE, '--', 'env', '-0'])).bytes)
  t.equal(kept.get('STRONGROOM_TOKEN'), caller.token)

  t.equal((await run(['run', PLACE, '--', 'sh', '-c', 'exit 7'])).code, 7)
  t.equal((await run(['run', PLACE, '--', 'sh', '-c', 'kill -9 $$'])).code, 137)
  if (LONG) t.equal((await run(['run', PLACE, '--', 'sh', '-c', 'kill -TERM $$'])).code, 143)
  t.match(await run(['run', PLACE, '--', 'no-such-command']), { code: 127, stderr: /^strongroom: no-such-command: [^\n]*\n$/ })
  t.match(await run(['run', PLACE, '--', '/etc/passwd']), { code: 126, stderr: /^strongroom: [^\n]*\n$/ })
  if (LONG) t.match(await run(['run', PLACE, '--', '/tmp']), { code: 126 })
  t.match(await run(['run', PLACE]), { code: 125, stderr: /Write the command after/ })
  t.match(await run(['run', PLACE, '--']), { code: 125, stderr: /No command is given/ })
  t.match(await run(['run', PLACE, 'true', '--', 'true']), { code: 125, stderr: /Write the command after/ })
  t.match(await run(['run', 'orbit/backend/none', '--', 'true']), { code: 125, stdout: '', stderr: /^strongroom: [^\n]+\n$/ })
  t.match(await run(['run', PLACE, '--unknown', '--', 'true']), { code: 125 })
  t.match(await run(['get', 'NONE', PLACE]), { code: 1, stdout: '', stderr: /^strongroom: There is no value for NONE[^\n]*\n$/ })
  t.match(await run(['get']), { code: 2 })
})

t.test('a script without an interpreter runs in a shell, as execvp does it; a missing interpreter is 126', async (t) => {
  const { run, folder } = clientHome(t, await asToken(service, await placeWith(service, 'A=1\n')))
  const write = (name: string, text: string) => {
    writeFileSync(join(folder, name), text)
    chmodSync(join(folder, name), 0o755)
  }
  write('plain', 'echo "$A $1"\n')
  write('broken', '#!/nowhere/interpreter\n')
  t.match(await run(['run', PLACE, '--', './plain', 'x']), { code: 0, stdout: '1 x\n' })
  t.match(await run(['run', PLACE, '--', './broken']), { code: 126 })
  t.match(await run(['run', PLACE, '--', 'plain', 'y'], { env: { PATH: `${folder}:${process.env.PATH}` } }), { stdout: '1 y\n' })
})

t.test('variables that decide which code runs are left out, unless they are allowed', async (t) => {
  const names = ['PATH', 'LD_PRELOAD', 'NODE_OPTIONS', 'BASH_ENV', 'GIT_SSH_COMMAND', 'STRONGROOM_TOKEN', 'PAGER']
  const caller = await placeWith(service, JSON.stringify({ ...Object.fromEntries(names.map((name) => [name, '/evil'])), GOOD: '1', 'my-name': '2', '': '3' }).replace('{', '{"__proto__":"own",'), 'json')
  const { run } = clientHome(t, await asToken(service, caller))
  const shown = await run(['run', PLACE, '--', 'env', '-0'])
  const variables = variablesIn(shown.bytes)
  t.strictSame([variables.get('GOOD'), variables.get('__proto__')], ['1', 'own'])
  for (const name of names) t.not(variables.get(name), '/evil', name)
  t.match(shown.stderr, /decide which code[^\n]*: [^\n]*LD_PRELOAD/)
  t.match(shown.stderr, /cannot be variables: [^\n]*my-name/)
  const allowed = variablesIn((await run(['run', PLACE, '--allow', 'PAGER,LD_PRELOAD', '--', 'env', '-0'])).bytes)
  t.strictSame([allowed.get('PAGER'), allowed.get('LD_PRELOAD'), allowed.get('BASH_ENV')], ['/evil', '/evil', undefined])
})

t.test('names are chosen by --only and --except, and --keep-existing lets variables win', async (t) => {
  const { run } = clientHome(t, await asToken(service, await placeWith(service, 'A=1\nB=2\nC=3\n')))
  const chosen = async (...options: string[]) => {
    const variables = variablesIn((await run(['run', PLACE, ...options, '--', 'env', '-0'], { env: { A: 'here' } })).bytes)
    return ['A', 'B', 'C'].map((name) => variables.get(name))
  }
  t.strictSame(await chosen(), ['1', '2', '3'])
  t.strictSame(await chosen('--only', 'A,B'), ['1', '2', undefined])
  t.strictSame(await chosen('--only', 'A', '--only', 'B', '--except', 'B'), ['1', undefined, undefined])
  t.strictSame(await chosen('--keep-existing'), ['here', '2', '3'])
  for (const none of sample(['', ',', ' '], 3)) {
    t.match(await run(['run', PLACE, '--only', none, '--', 'true']), { code: 125, stderr: /--only names no value/ }, 'an empty variable chooses nothing')
  }
  t.strictSame(await chosen('--except', ''), ['1', '2', '3'])
  t.match(await run(['run', PLACE, '--only', 'NONE', '--', 'true']), { code: 125, stderr: /no value for NONE/ })
})

t.test('a value is mounted as a file that only this person can read, and gone after the command', async (t) => {
  const { run, folder } = clientHome(t, await asToken(service, await placeWith(service, 'KEY="-----BEGIN\nx"\nA=1\n')))
  const path = join(folder, 'key.pem')
  const show = `cat ${path}; stat -L -c %a ${path}; printf %s "\${KEY+set}"`
  const mounted = await run(['run', PLACE, '--mount', `KEY=${path}`, '--except', 'KEY', '--', 'sh', '-c', show])
  t.equal(mounted.stdout, '-----BEGIN\nx600\n')
  t.notOk(existsSync(path), 'the link is removed')
  t.equal((await run(['run', PLACE, '--mount', `KEY=${path}`, '--', 'sh', '-c', 'env | grep -c ^KEY='])).stdout, '1\n')
  writeFileSync(path, 'mine')
  t.match(await run(['run', PLACE, '--mount', `KEY=${path}`, '--', 'true']), { code: 125, stderr: /key\.pem exists/ })
  t.equal(readFileSync(path, 'utf8'), 'mine')
  t.match(await run(['run', PLACE, '--mount', `NONE=${path}2`, '--', 'true']), { code: 125 })
  t.match(await run(['run', PLACE, '--mount', `A=${folder}/a`, '--', 'sh', '-c', `rm ${folder}/a; echo other >${folder}/a`]), { code: 0 })
  t.equal(readFileSync(join(folder, 'a'), 'utf8'), 'other\n', 'what the command put there stays')
})

t.test('values that the kernel refuses are named before the start', { skip: process.platform !== 'linux' && 'Linux' }, async (t) => {
  const caller = await placeWith(service, JSON.stringify({ BIG: 'x'.repeat(131_068), FITS: 'y'.repeat(131_066) }), 'json')
  const { run } = clientHome(t, await asToken(service, caller))
  t.match(await run(['run', PLACE, '--', 'true']), { code: 125, stderr: /^strongroom: Too large for a variable[^\n]*: BIG\./ })
  t.match(await run(['run', PLACE, '--except', 'BIG', '--', 'true']), { code: 0 })
})

t.test('what restrictions leave out is said, and --strict makes it a failure', async (t) => {
  const caller = await placeWith(service, 'A=1\n')
  const environment = (await caller.call('GET', `/${caller.organization}/orbit/backend/live`)).body.data.id
  t.ok(environment)
  const made = await caller.call('POST', `/organizations/${caller.organization}/api-keys`, {
    name: 'one', abilities: ['secret:read', 'secret:decrypt'], restrictions: [{ project: 'orbit', target: 'backend', environment: 'live' }]
  })
  const { run } = clientHome(t, { ...await asToken(service, caller), STRONGROOM_TOKEN: made.body.token })
  t.match(await run(['run', PLACE, '--', 'sh', '-c', 'echo $A']), { code: 0, stdout: '1\n', stderr: /leave out[^\n]*project, target/ })
  t.match(await run(['run', '--strict', PLACE, '--', 'true']), { code: 125 })
})

t.test('get, set, unset and list change and print exact bytes', async (t) => {
  const { run, folder } = clientHome(t, await asToken(service, await placeWith(service, 'A=1\n')))
  const value = 'tail\u00a0"quotes" \\ $x `y`\n'
  t.match(await run(['set', 'B', PLACE], { input: value }), { code: 0 })
  t.strictSame((await run(['get', 'B', PLACE])).bytes, Buffer.from(value))
  writeFileSync(join(folder, 'value'), 'from a file')
  t.match(await run(['set', 'C', PLACE, '--file', join(folder, 'value')]), { code: 0 })
  t.match(await run(['set', 'D=on the line', PLACE]), { code: 0, stderr: /A shell keeps/ })
  t.match(await run(['set', 'E', PLACE], { input: Buffer.from([0x61, 0xff]) }), { code: 1, stderr: /not UTF-8/ })
  t.match(await run(['set', 'E', PLACE], { input: 'a\0b' }), { code: 1, stderr: /NUL/ })
  t.match(await run(['unset', 'A', PLACE]), { code: 0 })
  t.equal((await run(['list', PLACE])).stdout.replaceAll(/ +/g, ' '), 'B environment\nC environment\nD environment\n')
  t.strictSame(JSON.parse((await run(['list', '--values', '--json', PLACE])).stdout).map(({ name, value }: Record<string, string>) => [name, value]),
    [['B', value], ['C', 'from a file'], ['D', 'on the line']])
  t.strictSame(JSON.parse((await run(['get', 'C', '--json', PLACE])).stdout), { name: 'C', value: 'from a file' })
})

t.test('names and values write nothing on a terminal but text, in a table, in JSON and in messages', async (t) => {
  // An escape sequence, the same with its C1 character, DEL, separators, and characters that change the direction.
  const hostile = ['\u001b[2J', '\u009b2J', '\u007f', '\u0085', '\u2028', '\u2029', '\u202e', '\u2066', '\u061c', '\u200e', '\u200f']
  const document = Object.fromEntries(hostile.map((text, i) => [`N${i}${text}`, `v${text}\nend`]))
  const { run } = clientHome(t, await asToken(service, await placeWith(service, JSON.stringify({ ...document, PLAIN: 'é 語 \u200d😀' }), 'json')))
  // eslint-disable-next-line no-control-regex
  const obeyed = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/
  const kinds = [
    ['list', '--values'], ['list'], ['list', '--values', '--json'], ['list', '--json'], ['get', 'none\u009b\u202e\u061c'], ['get', 'N1\u009b2J', '--json'], ['run', '--except', 'PLAIN']
  ]
  for (const options of sample(kinds, 2)) {
    const { stdout, stderr } = await run([...options, PLACE, ...options[0] === 'run' ? ['--', 'true'] : []])
    t.notMatch(stdout, obeyed, options.join(' '))
    t.notMatch(stderr, obeyed, options.join(' '))
    t.ok(`${stdout}${stderr}`.split('\n').length <= hostile.length + 2, `${options.join(' ')}: one line each`)
  }
  const text = (await run(['list', '--values', '--json', PLACE])).stdout
  const listed = JSON.parse(text) as { name: string, value: string }[]
  t.strictSame(Object.fromEntries(listed.map(({ name, value }) => [name, value])), { ...document, PLAIN: 'é 語 \u200d😀' })
  t.match(text, /"é 語 \u200d😀"/, 'other text stays as it is')
  t.strictSame((await run(['get', 'N1\u009b2J', PLACE])).bytes, Buffer.from('v\u009b2J\nend'), 'get prints the value itself')
})

t.test('half of a surrogate pair, which UTF-8 cannot express, is neither set, printed, mounted nor replaced', async (t) => {
  const document = '{"HALF":"secret\\ud800","OTHER":"\\udc00\\ud800x","WHOLE":"\\ud83d\\ude00"}'
  const { run, folder } = clientHome(t, await asToken(service, await placeWith(service, document, 'json')))
  const { code, stderr, bytes } = await run(['run', PLACE, '--', 'env', '-0'])
  t.match({ code, stderr }, { code: 0, stderr: /Left out[^\n]*: HALF, OTHER\.\n$/ })
  t.match([...variablesIn(bytes)].filter(([name]) => name in JSON.parse(document)), [['WHOLE', '😀']])
  for (const args of [['get', 'HALF', PLACE], ['run', PLACE, '--mount', `OTHER=${join(folder, 'other')}`, '--', 'true']]) {
    const ended = await run(args)
    t.match(ended, { code: args[0] === 'get' ? 1 : 125, stdout: '', stderr: /half of a surrogate pair/ })
    t.notMatch(ended.stderr, /secret/)
  }
  t.equal((await run(['get', 'WHOLE', PLACE])).stdout, '😀')
  t.match(await run(['get', '--json', 'HALF', PLACE]), { code: 0, stdout: '{"name":"HALF","value":"secret\\ud800"}\n' })
})

t.test('an argument that is not UTF-8 sets nothing', async (t) => {
  const { env, run } = clientHome(t, await asToken(service, await placeWith(service, 'A=1\n')))
  for (const argument of ["printf 'A=a\\377'", "printf 'A\\377=a'"]) {
    const ended = await runProgram('sh', ['-c', `exec "$0" "$1" set "$(${argument})" ${PLACE}`, process.execPath, CLIENT], env)
    t.match(ended, { code: 1, stderr: /not UTF-8/ }, argument)
  }
  t.match(await run(['set', 'A', PLACE], { input: 'b\ufffd' }), { code: 0 }, 'the character itself, on standard input')
  t.equal((await run(['get', 'A', PLACE])).stdout, 'b\ufffd')
})

t.test('names with escape sequences are not taken for each other (0075)', async (t) => {
  const values = { '\\': 'back', '"': 'quote', 'a\\': 'a back', 'a"': 'a quote', '\n': 'line' }
  const { run } = clientHome(t, await asToken(service, await placeWith(service, JSON.stringify(values), 'json')))
  for (const [name, value] of sample(Object.entries(values), 2)) t.equal((await run(['get', name, PLACE])).stdout, value)
})

const FORMATS = ['env', 'json', 'yaml', 'client'] as const
const ALPHABET = ['a', 'Z', '0', ' ', '\n', '\t', "'", '"', '`', '$', '\\', '#', '=', ':', '{', '[', '%', 'é', '語', '😀', '\u2028', '~', '!', '&', '|', '-']

t.test('every value of random documents arrives in the program byte for byte', async (t) => {
  let seed = 49
  const random = (below: number) => { seed = (seed * 1_103_515_245 + 12_345) % 2_147_483_648; return seed % below }
  const text = () => Array.from({ length: random(12) }, () => ALPHABET[random(ALPHABET.length)]!).join('')
  for (const format of FORMATS) {
    const isClient = format === 'client'
    const caller = await placeWith(service, isClient ? '' : format === 'env' ? '' : '{}', isClient ? 'env' : format)
    const { call, organization: o } = caller
    const home = clientHome(t, await asToken(service, caller))
    const keyString = 'a key string of the client for this test'
    const key = await newKey(keyString)
    if (isClient) {
      writeFileSync(join(home.folder, 'key'), `${keyString}\n`)
      const registration = { storage_mode: 'client', key_check: key.proof, key_check_salt: key.salt, key_check_iterations: key.iterations }
      await call('POST', `/${o}/projects`, { name: 'Ours', slug: 'ours', secret_format: 'json', ...registration })
    }
    for (let n = 0; n < (LONG ? 75 : 1); n++) {
      const values = Object.fromEntries(Array.from({ length: 1 + random(8) }, (_, i) => [`N${i}_${n}`, text()]))
      if (isClient) {
        const stored = await call('POST', `/${o}/secrets/store`, {
          project: 'ours', content: await sealBlob(key, JSON.stringify(values)), key_proof: key.proof
        })
        t.equal(stored.status, 200, stored.text)
      } else {
        if (format === 'env') {
          await store(caller, '')
          // What no form of `.env` can hold is refused, and left out here.
          for (const [name, value] of Object.entries(values)) {
            const { status } = await call('PATCH', `/${o}/${PLACE}/secrets`, { set: { [name]: value } })
            if (status !== 200) delete values[name]
          }
        } else await store(caller, JSON.stringify(values))
      }
      const place = isClient ? ['ours', '--key-file', join(home.folder, 'key')] : [PLACE]
      const shown = await home.run(['run', ...place, '--', 'env', '-0'])
      const variables = variablesIn(shown.bytes)
      for (const [name, value] of Object.entries(values)) t.equal(variables.get(name), value, `${format} ${name}`)
    }
  }
})

t.test('a client-managed project needs its key string, a wrong one fails, and doctor finds it readable', async (t) => {
  const caller = await service.organization()
  const { call, organization: o } = caller
  const { registration, keyString, seal, proof } = await sealed()
  await call('POST', `/${o}/projects`, { name: 'Ours', slug: 'ours', ...registration })
  await call('POST', `/${o}/secrets/store`, { project: 'ours', content: await seal('A=1\n'), key_proof: proof })
  const home = clientHome(t, await asToken(service, caller))
  const [right, wrong] = ['right', 'wrong'].map((name) => join(home.folder, name))
  writeFileSync(right!, keyString)
  writeFileSync(wrong!, 'another key string of somewhere')
  t.match(await home.run(['get', 'A', 'ours', '--key-file', right!]), { code: 0, stdout: '1' })
  t.match(await home.run(['get', 'A', 'ours'], { env: { STRONGROOM_KEY_FILE: right! } }), { stdout: '1' })
  t.match(await home.run(['run', 'ours', '--key-file', wrong!, '--', 'true']), { code: 125, stderr: /does not decrypt/ })
  t.match(await home.run(['run', 'ours', '--', 'true']), { code: 125, stderr: /client-managed/ })
  t.match(await home.run(['set', 'A', 'ours'], { input: '2' }), { code: 1, stderr: /use the console/ })
  t.match(await home.run(['list', 'ours', '--key-file', right!]), { stdout: /^A +project\n$/ })
  const history = await service.token(o, ['secret:read', 'secret:decrypt', 'secret:history', 'project:read'])
  t.match(await home.run(['get', 'A', 'ours', '--key-file', right!], { env: { STRONGROOM_TOKEN: history.token } }),
    { code: 0, stdout: '1' }, 'without key:retrieve, the newest version names the parameters of the key')
  t.match(await home.run(['doctor', 'ours']), { code: 0, stdout: /ok +permitted +1 encrypted documents/ })

  async function sealed () {
    const keyString = 'the key string of this project'
    const key = await newKey(keyString)
    const registration = { storage_mode: 'client', ...checkOf(key) }
    return { keyString, registration, proof: key.proof, seal: (text: string) => sealBlob(key, text) }
  }
})

t.test('a command works without a working directory and without standard output', async (t) => {
  const { run, folder, env } = clientHome(t, await asToken(service, await placeWith(service, 'A=1\n')))
  const gone = await runProgram('sh', ['-c', `mkdir '${folder}/gone'; cd '${folder}/gone'; rmdir '${folder}/gone'; exec "$0" "$1" get A ${PLACE}`, process.execPath, CLIENT], env)
  t.match(gone, { code: 0, stdout: '1' })
  t.match(await run(['run', PLACE, '--', 'true'], { env: { STRONGROOM_INSECURE_HTTP: '' } }), { code: 0 })
  const full = await runProgram('sh', ['-c', `exec "$0" "$1" get A ${PLACE} >/dev/full`, process.execPath, CLIENT], env)
  t.match(full, { code: 1, stderr: /Standard output cannot be written: ENOSPC/ })
})

t.test('a project of the format text has no names, and says so', async (t) => {
  const { run } = clientHome(t, await asToken(service, await placeWith(service, 'free text', 'text')))
  t.match(await run(['run', PLACE, '--', 'true']), { code: 125, stderr: /text/ })
})

t.test('the client is one file of at most 300 KB, and prints help and completions without a service', async (t) => {
  t.ok(lstatSync(CLIENT).size <= 300_000)
  const { run } = clientHome(t)
  for (const words of [['--help'], ['run', '--help'], ['list', '--help']]) {
    const { code, stdout } = await run(words)
    t.equal(code, 0)
    t.ok(stdout.split('\n').length <= 24, `${words.join(' ')} fits a screen: ${stdout.split('\n').length} lines`)
  }
  for (const shell of ['bash', 'zsh', 'fish']) t.match((await run(['completion', shell])).stdout, /doctor/)
  t.match(await run(['completion', 'tcsh']), { code: 2 })
  t.match(await run([]), { code: 2, stderr: /^Usage: strongroom [^\n]*\n\n/ })
  t.match(await run(['lst']), { code: 2, stderr: /^strongroom: unknown command 'lst' \(Did you mean list\?\)\n$/ })
  t.match(await run(['nonsense']), { code: 2 })
})

t.test('the service serves the file of its build, and a page that says how to install it', async (t) => {
  const quiet = await startApp(t, { CONSOLE: 'off', DOCS_UI: 'off', RATE_LIMIT_API: '100' })
  const address = await quiet.listen()
  const file = await fetch(`${address}/cli/strongroom.mjs`)
  t.equal(await file.text(), readFileSync(CLIENT, 'utf8'))
  t.equal(file.headers.get('cache-control'), 'no-cache')
  t.ok(file.headers.get('x-ratelimit-limit'))
  const page = await (await fetch(`${address}/cli/`)).text()
  const { createHash } = await import('node:crypto')
  t.match(page, createHash('sha256').update(readFileSync(CLIENT)).digest('hex'))
  t.match(page, `${address}/cli/strongroom.mjs`)
  t.equal((await fetch(`${address}/cli`, { redirect: 'manual' })).status, 308)
})
