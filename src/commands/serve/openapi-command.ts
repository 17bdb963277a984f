import { readFileSync, writeFileSync } from 'node:fs'
import { command, type Noun } from '../common/noun.ts'
import { write } from '../common/stdio.ts'
import { FLAG } from '../common/words.ts'

export const noun: Noun = {
  help: `  openapi [--stdout]                      write openapi.yaml and what else follows from the routes
`,

  run: command({ stdout: FLAG }, async ({ stdout }) => {
    // Import on demand: this module imports the application, which the help text does not need.
    const { renderDocuments, renderSecurityPage } = await import('./openapi.ts')
    const documents = await renderDocuments()
    if (stdout) return await write(documents['openapi.yaml'])
    const page = renderSecurityPage(readFileSync('SECURITY.md', 'utf8'))
    for (const [file, text] of Object.entries({ ...documents, 'SECURITY.md': page })) writeFileSync(file, text)
  })
}
