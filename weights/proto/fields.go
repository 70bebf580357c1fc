package proto

func (*Ack) Kind() Kind       { return KindAck }
func (*Join) Kind() Kind      { return KindJoin }
func (*Joined) Kind() Kind    { return KindJoined }
func (*Stale) Kind() Kind     { return KindStale }
func (*Want) Kind() Kind      { return KindWant }
func (*Plan) Kind() Kind      { return KindPlan }
func (*PlannedBy) Kind() Kind { return KindPlanned }
func (*Begin) Kind() Kind     { return KindBegin }
func (*Stopped) Kind() Kind   { return KindStopped }
func (*GrantOf) Kind() Kind   { return KindGrant }
func (*Start) Kind() Kind     { return KindStart }
func (*Drop) Kind() Kind      { return KindDrop }
func (*Stage) Kind() Kind     { return KindStage }
func (*Quiet) Kind() Kind     { return KindQuiet }
func (*Prepared) Kind() Kind  { return KindPrepared }
func (*Failed) Kind() Kind    { return KindFailed }
func (*Halt) Kind() Kind      { return KindHalt }
func (*Halted) Kind() Kind    { return KindHalted }
func (*Decided) Kind() Kind   { return KindDecision }
func (*OutOf) Kind() Kind     { return KindOut }
func (*Done) Kind() Kind      { return KindDone }
func (*Flip) Kind() Kind      { return KindFlip }
func (*Flipped) Kind() Kind   { return KindFlipped }
func (*Ask) Kind() Kind       { return KindAsk }
func (*Told) Kind() Kind      { return KindTold }

func (m *Ack) fields(c *coder)      { c.u64("seq", &m.Seq) }
func (*Joined) fields(*coder)       {}
func (m *Stale) fields(c *coder)    { c.term("highest", &m.Highest) }
func (m *Want) fields(c *coder)     { c.hash("hash", &m.Hash) }
func (*PlannedBy) fields(*coder)    {}
func (*Stopped) fields(*coder)      {}
func (m *Drop) fields(c *coder)     { c.nums("members", &m.Members, MaxMembers, MaxMembers) }
func (m *Prepared) fields(c *coder) { c.hash("root", &m.Root) }
func (m *Flip) fields(c *coder)     { m.Decision.fields(c) }

func (m *Member) fields(c *coder) {
	c.id("member id", &m.ID)
	c.text("member addr", &m.Addr, maxAddr)
	c.enum("role", (*uint8)(&m.Role), 1, uint8(roleEnd))
	c.num("rank", &m.Rank, maxRank)
	c.num("instance", &m.Instance, maxRank)
	c.num("shard", &m.Shard, maxRank)
	c.bool("leader", &m.Leader)
	c.bool("shadow", &m.Shadow)
	c.hash("layout", &m.Layout)
}

func (c *coder) members(field string, v *[]Member) {
	list(c, field, v, MaxMembers, memberLeast, func(m *Member) { m.fields(c) })
}

func (d *Decision) fields(c *coder) {
	c.key("decision of", &d.Of)
	c.u64("version", (*uint64)(&d.Version))
	c.bool("commit", &d.Commit)
	c.nums("instances", &d.Instances, MaxInstances, maxRank)
	c.bool("operator", &d.Operator)
}

func (m *Join) fields(c *coder) {
	m.Member.fields(c)
	c.text("name", &m.Name, maxName)
	c.num("group", &m.Group, maxRank)
	c.enum("state", (*uint8)(&m.State), 1, uint8(stateEnd))
	c.u64("version", (*uint64)(&m.Version))
	c.u64("pending", (*uint64)(&m.Pending))
	c.hash("root", &m.Root)
	c.u64("held", (*uint64)(&m.Held))
	c.key("epoch", &m.Epoch)
	c.id("log", &m.Log)
	c.key("since", &m.Since)
	m.Last.fields(c)
	c.members("others", &m.Others)
	c.ids("stuck", &m.Stuck)
}

func (m *Plan) fields(c *coder) {
	c.enum("mode", (*uint8)(&m.Mode), 1, uint8(modeEnd))
	c.hash("plan", &m.Plan)
	c.hash("slice", &m.Slice)
}

func (m *Begin) fields(c *coder) {
	c.enum("mode", (*uint8)(&m.Mode), 1, uint8(modeEnd))
	c.id("log", &m.Log)
	c.key("since", &m.Since)
	c.hash("plan", &m.Plan)
	c.hash("slice", &m.Slice)
	c.members("members", &m.Members)
	list(c, "kept", &m.Kept, MaxStages/64, 8, func(v *uint64) { c.u64("kept", v) })
	c.nums("writers", &m.Writers, MaxMembers, max(1, len(m.Members)))
	c.nums("targets", &m.Targets, MaxMembers, max(1, len(m.Members)))
}

func (g *Grant) fields(c *coder) {
	c.u64("serial", &g.Serial)
	list(c, "immediates", &g.Imms, MaxStages, 4, func(v *uint32) { c.u32("immediate", v) })
	list(c, "descriptors", &g.Descriptors, MaxBuffers, 4, func(v *[]byte) { c.blob("descriptor", v, maxDescriptor) })
}

func (m *Start) fields(c *coder) {
	list(c, "grants", &m.Grants, MaxMembers, 4+grantLeast, func(g *PeerGrant) {
		c.num("member", &g.Member, MaxMembers)
		g.Grant.fields(c)
	})
}

func (m *Stage) fields(c *coder) {
	list(c, "sums", &m.Sums, maxSums, stageSumLeast, func(s *StageSum) {
		c.num("from", &s.From, MaxMembers)
		c.num("to", &s.To, MaxMembers)
		c.num("stage", &s.Stage, MaxStages)
		c.u64("digest", &s.Digest)
		c.u64("runs", &s.Runs)
		c.u64("bytes", &s.Bytes)
	})
}

func (m *Quiet) fields(c *coder) {
	c.enum("how", (*uint8)(&m.How), 1, uint8(quietEnd))
	c.nums("missed", &m.Missed, MaxMembers, MaxMembers)
	c.nums("unquiet", &m.Unquiet, MaxMembers, MaxMembers)
}

func (m *Failed) fields(c *coder) {
	c.enum("code", (*uint8)(&m.Code), 1, uint8(codeEnd))
	c.num("stage", &m.Stage, MaxStages)
	c.text("text", &m.Text, maxText)
}

func (m *Halt) fields(c *coder) {
	c.num("round", &m.Round, maxRank)
	c.bool("fence", &m.Fence)
	c.nums("lost", &m.Lost, MaxMembers, MaxMembers)
}

func (m *Halted) fields(c *coder) {
	c.num("round", &m.Round, maxRank)
	list(c, "verified", &m.Verified, MaxStages/64, 8, func(v *uint64) { c.u64("verified", v) })
	c.ids("stuck", &m.Stuck)
}

func (m *Decided) fields(c *coder) {
	m.Decision.fields(c)
	c.key("since", &m.Since)
	c.bool("clean", &m.Clean)
	c.ids("quiet", &m.Quiet)
	c.enum("code", (*uint8)(&m.Code), 0, uint8(codeEnd))
	c.text("text", &m.Text, maxText)
}

func (m *OutOf) fields(c *coder) {
	c.key("of", &m.Of)
	c.key("since", &m.Since)
	c.bool("commit", &m.Commit)
	c.enum("code", (*uint8)(&m.Code), 0, uint8(codeEnd))
	c.text("text", &m.Text, maxText)
}

func (m *Done) fields(c *coder) {
	c.key("of", &m.Of)
	c.bool("ok", &m.OK)
	c.enum("code", (*uint8)(&m.Code), 0, uint8(codeEnd))
	c.text("text", &m.Text, maxText)
	c.ids("stuck", &m.Stuck)
}

func (m *Flipped) fields(c *coder) {
	c.bool("ok", &m.OK)
	c.text("text", &m.Text, maxText)
}

func (m *Ask) fields(c *coder) {
	c.key("of", &m.Of)
	c.id("log", &m.Log)
}

func (m *Told) fields(c *coder) {
	c.key("of", &m.Of)
	c.bool("known", &m.Known)
	c.bool("pending", &m.Pending)
	m.Decision.fields(c)
}

func (m *GrantOf) fields(c *coder) {
	m.Grant.fields(c)
	list(c, "holds", &m.Holds, MaxMembers, 12, func(i *Import) {
		c.num("member", &i.Member, MaxMembers)
		c.u64("serial", &i.Serial)
	})
}
