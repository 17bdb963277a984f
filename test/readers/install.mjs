// `npm run readers`: installs readers of `.env` files that are not npm packages into dist/readers/, for
// test/documents/{env-readers,exports}.test.ts. Skips a reader whose language is not installed, with a message.
import { spawnSync } from 'node:child_process'
import { mkdirSync } from 'node:fs'
import { resolve } from 'node:path'

const TARGET = resolve('dist/readers')
const INSTALLS = [
  ['python3', ['-m', 'pip', '--quiet', '--disable-pip-version-check', 'install', '--upgrade',
    '--target', resolve(TARGET, 'python'), '--requirement', 'requirements.txt'], 'test/readers'],
  ['go', ['build', '-mod=readonly', '-o', resolve(TARGET, 'go-readers'), '.'], 'test/readers/go'],
  ['go', ['build', '-mod=readonly', '-o', resolve(TARGET, 'docker-readers'), '.'], 'test/readers/docker']
]

mkdirSync(TARGET, { recursive: true })
for (const [command, args, cwd] of INSTALLS) {
  const { error, status } = spawnSync(command, args, { cwd, stdio: 'inherit' })
  if (status === 0) continue
  console.error(`Not installed: the readers that need ${command}${error ? `, which is not installed (${error.code})` : ''}.`)
  process.exitCode = 1
}
