import { useState } from 'preact/hooks'
import { call, firstPages, type Schemas } from './api.ts'
import { columnsOf, kindOf, levelOf, titleOf, type Level } from './levels.ts'
import { Act, Field, Show, useLoad, type Fields, type Option } from './ui.tsx'

// The choice of a part of the hierarchy, for restrictions of tokens and of teams.

async function projectsOf (organization: string): Promise<Option[]> {
  const { found } = await firstPages(async (page) =>
    (await call('listProjects', { path: { organization }, query: { page, per_page: 100, sort: 'name' } })).data)
  return found.map(({ attributes: { slug, name } }) => [slug, name])
}

/** Fields for a project and a level of it: `project`, and `level` with the slugs of the target and the environment. */
export function PartPicker ({ organization, none }: { organization: string, none: string }) {
  const [projects, setProjects] = useState<readonly Option[]>()
  const [project, setProject] = useState('')
  const open = async () => setProjects(await projectsOf(organization))
  if (projects === undefined) return <div class='actions'><Act name='part.choose' run={open} /></div>
  return (
    <>
      <Field label='Project' name='project' options={[['', none], ...projects]} onInput={setProject} />
      {project !== '' && <LevelField key={project} organization={organization} project={project} />}
      {project !== '' && (
        <Field
          label='Values from the levels above' name='inherited' value='true'
          options={[['true', 'Included where the levels are merged'], ['', 'Left out']]}
          hint='A program in an environment usually also needs the values of its target and of the project. They appear in merged reads alone, not as documents or versions. For the whole project, this has no effect.'
        />
      )}
    </>
  )
}

function LevelField ({ organization, project }: { organization: string, project: string }) {
  const levels = useLoad(async () => {
    const found: Level[] = []
    const names = { organization, slug: project }
    for await (const column of columnsOf({ organization, project })) found.push(levelOf(names, column))
    return found
  }, [])
  return (
    <Show of={levels}>
      {(found) => (
        <Field
          label='Part of the project' name='level'
          options={found.map((level) => [[level.target, level.environment].filter(Boolean).join('/'), kindOf(level) === 'project' ? 'The whole project' : titleOf(level)])}
        />
      )}
    </Show>
  )
}

/** A restriction in words; `whole`: the name of the level above its target. */
export const partInWords = (
  whole: string, { target, environment, except_status, inherited }: Omit<Schemas['TeamRestriction'], 'project'>
): string => [whole, target, environment].filter(Boolean).join(' / ') +
  (except_status === undefined ? '' : `, but not ${except_status}`) + (inherited === true ? ', with values from above' : '')

/** The restriction that a person has chosen; empty for the whole project. */
export function chosenPart ({ level = '', inherited, except_status = '' }: Fields) {
  const [target = '', environment] = level.split('/')
  const part = {
    ...(target !== '' && { target }),
    ...(environment !== undefined && { environment }),
    ...(except_status !== '' && { except_status: 'production' as const })
  }
  // A team keeps `inherited` unless the request says false.
  return { ...part, ...(Object.keys(part).length > 0 && { inherited: inherited === 'true' }) }
}
