// runs: no database; proof; 40 s
import { spawnSync } from 'node:child_process'
import { cpSync, existsSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { dirname, join } from 'node:path'
import t from 'tap'
import { admittedToImage } from '../helpers/image.ts'

t.test('the image is built from the files that .dockerignore admits', async (t) => {
  // Beside node_modules, because a hard link needs the same file system, and `dist/` is ignored by git.
  const dir = mkdtempSync('dist/image-')
  t.teardown(() => { rmSync(dir, { recursive: true }) })
  for (const path of admittedToImage()) {
    mkdirSync(dirname(join(dir, path)), { recursive: true })
    cpSync(path, join(dir, path))
  }
  t.equal(spawnSync('cp', ['-al', 'node_modules', join(dir, 'node_modules')]).status, 0)
  const run = (...args: string[]) => {
    const { status, stdout, stderr } = spawnSync(process.execPath, args, { cwd: dir, encoding: 'utf8' })
    return { status, stderr, stdout }
  }
  t.match(run('scripts/build.mjs'), { status: 0, stderr: '' })
  for (const path of ['cli/strongroom.mjs', 'console/index.html', 'drizzle', 'cluster.tar.gz', 'openapi-3.0.json']) {
    t.ok(existsSync(join(dir, 'dist', path)), path)
  }
  t.match(run('dist/src/cli.js', '--version'), { status: 0, stdout: /^\d+\.\d+\.\d+\n$/, stderr: '' })
})
