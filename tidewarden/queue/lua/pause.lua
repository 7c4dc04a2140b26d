-- pause: pauses takes until a time or for good, while puts go on; or resumes them.
-- DURABILITY queue
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3 ms (0: resume, -1: until resumed)
-- RETURNS 1
open()
local ms = int(3, 'pause ms', -1, NEVER)
count('pauses')
if ms == 0 then
  set('paused', 0)
  woke = true
else
  local till = ms < 0 and NEVER or math.min(now + ms, NEVER)
  set('paused', till)
  set('paused_for', till - now)
  if till < NEVER then note(till) end
end
return finish(1)
