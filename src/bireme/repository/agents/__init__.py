"""Repository agents: plug-ins that check or replace a model's files when it loads, and hear when it goes."""

from bireme.repository.agents.chain import AgentChain
from bireme.repository.agents.interface import AgentModel, RepositoryAgent
from bireme.repository.agents.registry import AgentRegistry

__all__ = ["AgentChain", "AgentModel", "AgentRegistry", "RepositoryAgent"]
