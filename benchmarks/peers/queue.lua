-- queue: a delay queue in Tarantool for the benchmarks, as one would write it: put, take (waits), ack, and what a lost
-- connection held is ready again. Settings come by the environment.
local fiber = require('fiber')

box.cfg{
  listen = os.getenv('BENCH_LISTEN'), work_dir = os.getenv('BENCH_FOLDER'), wal_mode = os.getenv('BENCH_WAL'),
  memtx_memory = 4 * 1024 * 1024 * 1024, checkpoint_interval = 0, log_level = 3,
}
box.schema.user.grant('guest', 'super', nil, nil, {if_not_exists = true})

-- A task: id, state (r ready, d delayed, t taken), due (µs), payload.
local tasks = box.schema.space.create('tasks')
tasks:create_index('id', {parts = {{1, 'unsigned'}}})
local order = tasks:create_index('order', {parts = {{2, 'string'}, {3, 'unsigned'}, {1, 'unsigned'}}})
-- The same record without a queue, for its size.
local records = box.schema.space.create('records')
records:create_index('id', {parts = {{1, 'unsigned'}}})

local ready, earlier = fiber.cond(), fiber.cond()
local held = {} -- session: set of ids
local last = 0

local function first(state)
  local task = order:min({state})
  if task and task[2] == state then return task end
end

function put(payload, delay_ms)
  last = last + 1
  local id, due = last, fiber.time64() + delay_ms * 1000
  if delay_ms == 0 then
    tasks:insert({id, 'r', due, payload})
    ready:signal()
  else
    tasks:insert({id, 'd', due, payload})
    local head = first('d')
    if head and head[1] == id then earlier:signal() end
  end
  return id
end

function take(wait_s)
  local till, session = fiber.time() + wait_s, box.session.id()
  while true do
    local task = first('r')
    if task then
      held[session] = held[session] or {}
      held[session][task[1]] = true
      tasks:update(task[1], {{'=', 2, 't'}})
      -- With a log the update yields; a session that has ended meanwhile was cleared already.
      if not box.session.exists(session) then
        tasks:update(task[1], {{'=', 2, 'r'}})
        ready:signal()
        return nil
      end
      return task[1], task[4]
    end
    local left = till - fiber.time()
    if left <= 0 or not box.session.exists(session) then return nil end
    ready:wait(left)
  end
end

function ack(id)
  local mine = held[box.session.id()]
  if not mine or not mine[id] then return false end
  mine[id] = nil
  tasks:delete(id)
  return true
end

box.session.on_disconnect(function()
  local session = box.session.id()
  local mine = held[session]
  held[session] = nil
  for id in pairs(mine or {}) do
    tasks:update(id, {{'=', 2, 'r'}})
    ready:signal()
  end
end)

fiber.create(function()
  while true do
    local task = first('d')
    if not task then earlier:wait()
    else
      local left_us = tonumber(task[3] - fiber.time64())
      if left_us <= 0 then
        tasks:update(task[1], {{'=', 2, 'r'}})
        ready:signal()
      else earlier:wait(left_us / 1e6) end
    end
  end
end)

-- `count` tasks (or plain records) of `size` bytes, due in `delay_ms`: for measuring memory.
function fill(count, size, delay_ms, plain)
  local payload = string.rep('x', size)
  for number = 1, count do
    if plain then records:insert({number, payload}) else put(payload, delay_ms) end
    if number % 1000 == 0 then fiber.yield() end
  end
end

-- Bytes of tuples, and of the indexes.
function memory()
  local indexes = 0
  for _, space in ipairs({tasks, records}) do
    for number = 0, #space.index do indexes = indexes + space.index[number]:bsize() end
  end
  return box.slab.info().items_used, indexes
end
