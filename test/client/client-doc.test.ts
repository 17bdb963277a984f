// runs: one database, embedded
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { startApp } from '../helpers/app.ts'
import { readDoc } from '../helpers/docs.ts'
import { run as runProgram } from '../helpers/process.ts'
import { asToken, clientHome, PLACE, placeWith } from '../helpers/strongroom.ts'

// The examples of docs/cli.md and of the page /cli/.

const service = await startApp(t)
const [install = '', file = ''] = readDoc('docs/cli.md').allBlocks

t.test('the client is installed as docs/cli.md says, and a file names the place', async (t) => {
  const caller = await placeWith(service, 'A=1\n')
  const address = await service.listen()
  const { folder, env } = clientHome(t, await asToken(service, caller))
  const installed = await runProgram('sh', ['-euc', `cd '${folder}'
    PATH="$HOME/.local/bin:$PATH"
    ${install.replace('https://strongroom.example', address)}`], env)
  t.match(installed, { code: 0, stdout: /^\d+\.\d+\.\d+\n$/ }, installed.stderr)
  writeFileSync(join(folder, '.strongroom.yaml'), file.replace('https://strongroom.example', address).replace('nimbus', caller.organization))
  const shown = await runProgram('sh', ['-euc', `cd '${folder}' && .local/bin/strongroom get A`], env)
  t.match(shown, { code: 0, stdout: '1' }, shown.stderr)
  t.match(file, PLACE)
})

t.test('the client is installed as its page says, also where a package.json is in the home directory', async (t) => {
  const address = await service.listen()
  const { folder, env } = clientHome(t)
  const page = await (await fetch(`${address}/cli/`)).text()
  const [, commands = ''] = /<pre>([^]*?)<\/pre>/.exec(page) ?? []
  writeFileSync(join(folder, 'package.json'), '{"type":"commonjs"}')
  const installed = await runProgram('sh', ['-euc', `cd '${folder}'
    ${commands.replaceAll('&#39;', "'")}
    "$HOME/.local/bin/strongroom" --version`], env)
  t.match(installed, { code: 0, stdout: /OK\n\d+\.\d+\.\d+\n$/ }, installed.stderr)
})

t.test('each command of the page is one that the client has, with its options', async (t) => {
  const { run } = clientHome(t)
  const commands = [...readDoc('docs/cli.md').text.matchAll(/`(?:[^`]*\| )?strongroom ([a-z]+)([^`]*)`/g)]
  t.ok(commands.length >= 10)
  for (const [text, command, rest = ''] of commands) {
    const help = await run([command!, '--help'])
    t.equal(help.code, 0, text)
    for (const option of rest.split(' -- ')[0]!.match(/--[a-z-]+/g) ?? []) t.match(help.stdout, option, text)
  }
})
