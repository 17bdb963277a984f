import { write } from '../common/output.ts'
import { readFileSync, writeFileSync } from 'node:fs'
import type { Noun } from '../common/noun.ts'
import { FLAG, parse } from '../common/words.ts'

/** `openapi` command. */
export const noun: Noun = {
  help: `  openapi [--stdout]                      write openapi.yaml and what else follows from the routes
`,

  run: async (args) => {
    const { stdout } = parse(args, { stdout: FLAG })
    const { renderDocuments, renderSecurityPage } = await import('./openapi.ts')
    const documents = await renderDocuments()
    if (stdout) await write(documents['openapi.yaml'])
    else {
      for (const [file, text] of Object.entries(documents)) writeFileSync(file, text)
      writeFileSync('SECURITY.md', renderSecurityPage(readFileSync('SECURITY.md', 'utf8')))
    }
    return 0
  }
}
